"""Assign gradients to buckets, copy them into flat buffers, and all-reduce the buffers."""

from collections.abc import Mapping, Sequence

import torch

from helpers.comm.transport import GroupTransport, Work
from helpers.parallel.ddp.replicas import refuse_odd

MiB = 2**20


def assign(tensors: Sequence[torch.Tensor], cap: float, first_cap: float | None = None):
    """Divide tensors into buckets, in their order. Returns lists of positions.

    Like PyTorch, it closes a bucket with the tensor that fills it. So a bucket has at least `cap`
    bytes, unless it is the last bucket or the next tensor has another dtype or device.

    Args:
        cap: the bytes that fill a bucket.
        first_cap: the same for the first bucket; a small one is sent earlier. Default: `cap`.
    """
    buckets: list[list[int]] = []
    size, limit, kind = 0, 0.0, None
    for position, tensor in enumerate(tensors):
        if size >= limit or (tensor.dtype, tensor.device) != kind:
            limit = cap if buckets or first_cap is None else first_cap
            buckets.append([])
            size, kind = 0, (tensor.dtype, tensor.device)
        buckets[-1].append(position)
        size += tensor.nbytes
    return buckets


def dense_strides(name: str, parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the parameter's strides, if a view into a bucket can have the same strides.

    Raises:
        ValueError: the parameter is not dense in memory.
    """
    kept = torch.empty_like(parameter, device="meta").stride()  # PyTorch keeps dense strides
    if kept != parameter.stride():
        raise ValueError(
            f"{name} is not dense in memory: its strides are {parameter.stride()} for the shape "
            f"{tuple(parameter.shape)}. Make it contiguous before you make DDP."
        )
    return kept


class Bucket:
    """Some parameters' gradients in one flat buffer, and its all-reduce.

    Attributes:
        parameters: by name, all of one dtype and device.
        flat: the buffer, (numel,).
        views: each gradient's view into the buffer, with the parameter's shape and strides. Fused
            optimizers need the same strides for parameter and gradient.
        missing: names of the parameters whose gradients are not in the bucket yet.

    Raises:
        ValueError: a parameter is not dense in memory.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        transport: GroupTransport,
        message_dtype: torch.dtype | None = None,
    ):
        self.parameters, self.transport = dict(parameters), transport
        first = next(iter(self.parameters.values()))
        sizes = [p.numel() for p in self.parameters.values()]
        self.flat = transport.empty(sum(sizes), first.dtype, first.device)
        parts = self.flat.split(sizes)
        self.views = {
            name: part.as_strided(p.shape, dense_strides(name, p), part.storage_offset())
            for (name, p), part in zip(self.parameters.items(), parts, strict=True)
        }
        self.places = {name: (p, self.views[name]) for name, p in self.parameters.items()}
        self.message = self.flat  # the tensor to send
        if message_dtype not in (None, first.dtype):
            self.message = transport.empty(sum(sizes), message_dtype, first.device)
        self.scale, self.factor = 1.0, torch.tensor(1.0)  # the last scale, also as a tensor
        self.missing = set(self.parameters)
        self.work: Work | None = None

    def take(self, name: str, scale: float = 1.0):
        """Copy this rank's gradient, times `scale`, into the bucket, and point `.grad` there.

        After `zero_grad`, autograd makes a new tensor for the gradient: it is copied, then freed.
        After earlier micro-batches, `.grad` is the bucket's view already.
        """
        parameter, view = self.places[name]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient.layout is not torch.strided or gradient.requires_grad:
            refuse_odd(name, gradient)
        elif scale != 1.0:
            if scale != self.scale:
                # A tensor of this dtype: multiplying by a Python number takes twice as long.
                wide = torch.promote_types(self.flat.dtype.to_real(), torch.float32)
                self.scale, self.factor = scale, torch.tensor(scale, dtype=wide)
            torch.mul(gradient, self.factor, out=view)
        elif gradient is not view:
            view.copy_(gradient)
        if gradient is not view:
            parameter.grad = view
        self.missing.discard(name)

    def start(self):
        """Start the all-reduce."""
        if self.message is not self.flat:
            self.message.copy_(self.flat)
        self.work = self.transport.all_reduce(self.message)

    def finish(self):
        """Wait for the sum, and prepare the bucket for the next backward."""
        self.work.wait()
        if self.message is not self.flat:
            self.flat.copy_(self.message)
        self.work = None
        self.missing = set(self.parameters)
