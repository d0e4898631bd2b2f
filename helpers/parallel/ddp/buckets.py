"""Gradients side by side in flat buffers: which go together, and how they get in and out."""

from collections.abc import Mapping, Sequence

import torch

from helpers.comm.transport import GroupTransport, Work
from helpers.parallel.ddp.replicas import refuse_odd

MiB = 2**20


def assign(tensors: Sequence[torch.Tensor], cap: float, first_cap: float | None = None):
    """Cut a row of tensors into buckets, in their order: lists of positions.

    A bucket is closed by the tensor that fills it: it holds at least `cap` bytes, unless it is
    the last or another dtype or device follows. So does PyTorch's.

    Args:
        cap: bytes of a bucket; `first_cap` of the first one, if it is to be on its way earlier.
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
    """The parameter's strides, which a place in a bucket of its size can have, too."""
    kept = torch.empty_like(parameter, device="meta").stride()  # PyTorch keeps dense ones
    if kept != parameter.stride():
        raise ValueError(
            f"{name} does not lie densely in memory: its strides are {parameter.stride()} for the "
            f"shape {tuple(parameter.shape)}. Make it contiguous before DDP is made."
        )
    return kept


class Bucket:
    """Some parameters' gradients in one flat buffer, and its all-reduce.

    Attributes:
        parameters: by name, all of one dtype and device.
        flat: the buffer, (numel,).
        views: each gradient's place in it, in the parameter's shape and strides: fused optimizers
            walk over parameter and gradient as they lie in memory.
        missing: the names whose gradients are not in yet.

    Raises:
        ValueError: a parameter whose numbers do not lie densely, each in a place of its own.
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
        self.message = self.flat  # what travels
        if message_dtype not in (None, first.dtype):
            self.message = transport.empty(sum(sizes), message_dtype, first.device)
        self.scale, self.factor = 1.0, torch.tensor(1.0)  # the last one, twice
        self.missing = set(self.parameters)
        self.work: Work | None = None

    def take(self, name: str, scale: float = 1.0):
        """Bring this rank's gradient to its place, times `scale`, and let `.grad` be that place.

        After `zero_grad` autograd hands over a new tensor: it is copied, and freed. One that was
        added to in its place (by the micro-batches before) is there already.
        """
        parameter, view = self.places[name]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient.layout is not torch.strided or gradient.requires_grad:
            refuse_odd(name, gradient)
        elif scale != 1.0:
            if scale != self.scale:
                # A tensor, and of this dtype: torch takes twice as long to multiply by a number.
                wide = torch.promote_types(self.flat.dtype.to_real(), torch.float32)
                self.scale, self.factor = scale, torch.tensor(scale, dtype=wide)
            torch.mul(gradient, self.factor, out=view)
        elif gradient is not view:
            view.copy_(gradient)
        if gradient is not view:
            parameter.grad = view
        self.missing.discard(name)

    def start(self):
        """Begin the all-reduce."""
        if self.message is not self.flat:
            self.message.copy_(self.flat)
        self.work = self.transport.all_reduce(self.message)

    def finish(self):
        """Wait for the sum; the bucket is empty again, for the next backward."""
        self.work.wait()
        if self.message is not self.flat:
            self.flat.copy_(self.message)
        self.work = None
        self.missing = set(self.parameters)
