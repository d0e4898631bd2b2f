"""Step three: send each bucket as soon as its gradients are ready, during the backward."""

from functools import partial

import torch
from torch.utils.weak import WeakIdKeyDictionary

from helpers.parallel.ddp.buckets import Bucket, MiB, assign
from helpers.parallel.ddp.replicas import Replica

HELD = WeakIdKeyDictionary()  # a parameter -> the DDP that reduces its gradient


class DDP(Replica):
    """Data parallel with messages that overlap the backward.

    A hook on each parameter runs when its gradient is complete. A bucket's last gradient starts the
    bucket's all-reduce. All ranks start the buckets in the same order, even if their gradients are
    ready in different orders, because ranks match collectives by order.

    The buckets are made after the first backward, in the order in which rank 0's gradients were
    ready: usually the reverse of the forward. The first bucket may be small, so that it goes early.

    Args:
        module, transport, options: as for Replica.
        bucket_cap_mb: a bucket's size in MiB (2^20 bytes); 25 by default.
        first_bucket_mb: the first bucket's size. The default is PyTorch's: `bucket_cap_mb` if you
            set it, else 1. Each bucket costs a message's latency.
        find_unused_parameters: allow parameters that the loss does not use. A rank that did not use
            a parameter counts as zero. If no rank used it, its `.grad` stays None. This costs a
            small all-reduce per step. A bucket with an unused parameter is sent only after the
            backward.
        message_dtype: round gradients to this dtype before sending. bfloat16 halves the bytes of
            float32, and rounds each sum.
        hooks: True: autograd's hooks report gradients. False: the code that runs the backward
            calls `gradient`.

    Raises:
        UnusedParameters: from `synchronize`, if a parameter got no gradient on this rank.
        RuntimeError: from `backward`, if a second backward runs before `synchronize`. At the start,
            if another DDP has the module: gradients would be reduced twice. `close` that DDP first.

    Source: Li et al. 2020, section 4.2 and algorithm 1.
    """

    def __init__(
        self,
        module,
        transport=None,
        *,
        bucket_cap_mb: float | None = None,
        first_bucket_mb: float | None = None,
        find_unused_parameters: bool = False,
        message_dtype: torch.dtype | None = None,
        hooks: bool = True,
        **options,
    ):
        super().__init__(module, transport, **options)
        if first_bucket_mb is None:
            first_bucket_mb = 1 if bucket_cap_mb is None else bucket_cap_mb
        self.caps = (25 if bucket_cap_mb is None else bucket_cap_mb) * MiB, first_bucket_mb * MiB
        self.find_unused_parameters = find_unused_parameters
        self.message_dtype = message_dtype
        self.scale = 1 / self.transport.size if self.average else 1.0
        self.parameters_by_name = self.trained()
        self.came: dict[str, None] = {}  # this backward's ready gradients, in order
        self.buckets: list[Bucket] = []
        self.bucket_of: dict[str, Bucket] = {}
        self.started = 0  # the number of buckets that have been started
        self.hooks = []
        if hooks:
            self.hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_came, name))
                for name, parameter in self.parameters_by_name.items()
            ]

    def take_hold(self):
        """Register this DDP as the only DDP of its parameters."""
        trained = self.trained()
        for name, parameter in trained.items():
            if parameter in HELD:
                raise RuntimeError(
                    f"another DDP already reduces the gradient of {name}, so it would be reduced "
                    "twice: call that DDP's close() first"
                )
        for parameter in trained.values():
            HELD[parameter] = id(self)

    def close(self):
        for hook in self.hooks:
            hook.remove()
        for parameter in self.parameters_by_name.values():
            if HELD.get(parameter) == id(self):
                del HELD[parameter]

    def gradient_came(self, name: str, _):
        self.gradient(name, self.syncing)

    def gradient(self, name: str, last: bool):
        # Keep this fast: it runs once per parameter in each backward.
        if not last:
            self.refuse_to_add(name)  # other parameters may be complete: a pipeline's other stage
        elif not self.buckets:
            if name in self.came:
                refuse_second(name)
            self.came[name] = None
        else:
            bucket = self.bucket_of[name]
            if name not in bucket.missing:
                refuse_second(name)
            bucket.take(name, self.scale)
            if not bucket.missing:
                self.start_full_buckets()

    def refuse_to_add(self, name: str):
        if name in self.came or (self.buckets and name not in self.bucket_of[name].missing):
            raise RuntimeError(
                f"a gradient for {name} inside no_sync() after a backward that sends: run only a "
                "step's last backward outside no_sync(), and call synchronize() after it"
            )

    def start_full_buckets(self):
        while self.started < len(self.buckets) and not self.buckets[self.started].missing:
            self.buckets[self.started].start()
            self.started += 1

    def synchronize(self):
        if not self.syncing:
            return
        unused = [name for name, p in self.parameters_by_name.items() if p.grad is None]
        if not self.find_unused_parameters:
            self.refuse_unused(unused)
        self.send_what_is_left()
        if self.find_unused_parameters:
            self.drop_unused(unused)

    def send_what_is_left(self):
        """Start the remaining buckets, with zeros for missing gradients, and wait for all."""
        if not self.buckets:
            self.make_buckets()
        for bucket in self.buckets[self.started :]:
            for name in list(bucket.missing):
                bucket.take(name, self.scale)
        self.start_full_buckets()
        for bucket in self.buckets:
            bucket.finish()
        self.started = 0
        self.came = {}

    def make_buckets(self):
        names = self.agreed_order()
        in_order = [self.parameters_by_name[name] for name in names]
        for positions in assign(in_order, *self.caps):
            held = {names[i]: in_order[i] for i in positions}
            bucket = Bucket(held, self.transport, self.message_dtype)
            self.buckets.append(bucket)
            self.bucket_of |= dict.fromkeys(held, bucket)

    def agreed_order(self) -> list[str]:
        """Broadcast the order of rank 0's gradients. Its unused parameters are last, reversed."""
        names = list(self.parameters_by_name)
        order = list(dict.fromkeys([*self.came, *reversed(names)]))
        device = next(iter(self.parameters_by_name.values())).device
        positions = torch.tensor([names.index(name) for name in order], device=device)
        self.transport.broadcast(positions)
        return [names[i] for i in positions.tolist()]

    def drop_unused(self, unused: list[str]):
        """Set the gradients that no rank used to None, so that the optimizer skips them."""
        names = list(self.parameters_by_name)
        device = next(iter(self.parameters_by_name.values())).device
        used = torch.tensor([name not in unused for name in names], device=device).int()
        self.transport.all_reduce(used).wait()
        for name, ranks in zip(names, used.tolist(), strict=True):
            if not ranks:
                self.parameters_by_name[name].grad = None


def refuse_second(name: str):
    raise RuntimeError(
        f"a second gradient for {name} before synchronize(): "
        "run all backwards of a step except the last inside no_sync()"
    )
