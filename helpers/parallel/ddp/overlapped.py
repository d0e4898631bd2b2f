"""Step three: a bucket sets out as soon as its gradients are there, while the backward goes on."""

from functools import partial

import torch
from torch.utils.weak import WeakIdKeyDictionary

from helpers.parallel.ddp.buckets import Bucket, MiB, assign
from helpers.parallel.ddp.replicas import Replica

HELD = WeakIdKeyDictionary()  # a parameter -> the DDP that reduces its gradient


class DDP(Replica):
    """Data parallel whose messages hide behind the backward.

    A hook on each parameter runs when its gradient is complete. The last one of a bucket starts
    the bucket's all-reduce. All ranks start the buckets in one order, whatever order their
    gradients come in, for collectives are matched by their order.

    The buckets are made after the first backward, in the order in which rank 0's gradients came,
    the reverse of the use in the forward. The first one may be small, to be on its way early.

    Args:
        module, transport, options: as for Replica.
        bucket_cap_mb: a bucket's size in MiB (2^20 bytes); 25 by default.
        first_bucket_mb: the first one's. By default as PyTorch's: 1, but `bucket_cap_mb` if that
            is given. Each bucket costs a message's latency.
        find_unused_parameters: let a parameter be left out by the loss. Ranks that did not use
            it count as zero; if no rank did, its `.grad` stays None. Costs a small all-reduce a
            step, and buckets with such a parameter set out only after the backward.
        message_dtype: send the gradients rounded to it, bfloat16 say: half the bytes, and each
            sum is rounded.
        hooks: whether to learn from autograd's hooks when a gradient has come; False: whoever runs
            the backward calls `gradient`.

    Raises:
        UnusedParameters: from `synchronize`, if a parameter got no gradient on this rank.
        RuntimeError: from `backward`, if a second one comes before `synchronize`; if another DDP
            holds the module, for gradients would be reduced twice: `close` it first.

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
        self.came: dict[str, None] = {}  # the gradients of this backward, in order
        self.buckets: list[Bucket] = []
        self.bucket_of: dict[str, Bucket] = {}
        self.started = 0  # of the buckets, in their order
        self.hooks = []
        if hooks:
            self.hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_came, name))
                for name, parameter in self.parameters_by_name.items()
            ]

    def take_hold(self):
        """One DDP for a parameter."""
        trained = self.trained()
        for name, parameter in trained.items():
            if parameter in HELD:
                raise RuntimeError(
                    f"another DDP holds {name} already, and would reduce its gradient a second "
                    "time: call that DDP's close() first"
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
        # Once the buckets are made, what stands here is paid for each parameter in each backward.
        if not last:
            self.refuse_to_add(name)
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
        if self.came or any(bucket.missing != bucket.parameters.keys() for bucket in self.buckets):
            raise RuntimeError(
                f"a gradient for {name} inside of no_sync() after a backward that sends: "
                "of the backwards of a step the last one sends, and synchronize() follows it"
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
        """Start what the hooks could not, with zeros for what is missing; wait for all."""
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
        """Rank 0's order; what did not come there goes last, in reverse of its definition."""
        names = list(self.parameters_by_name)
        order = list(dict.fromkeys([*self.came, *reversed(names)]))
        device = next(iter(self.parameters_by_name.values())).device
        positions = torch.tensor([names.index(name) for name in order], device=device)
        self.transport.broadcast(positions)
        return [names[i] for i in positions.tolist()]

    def drop_unused(self, unused: list[str]):
        """What no rank used has no gradient, so that the optimizer leaves it alone."""
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
        "run all backwards of a step but the last one inside of no_sync()"
    )
