"""Measure memory by kind, exactly, from the tensors' storages; and the peak.

The kinds are those of Rajbhandari et al. (2020, ZeRO, section 3): model states (parameters,
gradients, optimizer state) and residual states (activations and buffers).
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.measure.draw import bars, table, text

KINDS = ("parameters", "gradients", "optimizer", "buffers", "activations")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The result of `memory_of`: bytes in this process.

    Attributes:
        parameters, buffers: of the model, after the step.
        gradients: before the optimizer's step or after `step`, whichever is more.
        optimizer: the optimizer's state after the step, including its scalar counts.
        activations: the maximum that autograd saved for the backward at one time.
        peak: the maximum of all living tensors at one time, counted from their storages.
        device_peak: the CUDA allocator's own peak, including rounding and kernels' workspaces; None
            on the CPU.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    peak: int
    device_peak: int | None = None

    @property
    def model_states(self) -> int:
        """Parameters, gradients and optimizer state: the bytes that ZeRO shards."""
        return self.parameters + self.gradients + self.optimizer

    def _rows(self) -> dict[str, str]:
        rows = {kind: f"{getattr(self, kind):,}" for kind in (*KINDS, "peak")}
        if self.device_peak is not None:
            rows["device peak"] = f"{self.device_peak:,}"
        return rows

    def __repr__(self):
        return text("bytes", self._rows())

    def _repr_html_(self):
        return table("bytes", self._rows())

    def plot(self):
        """Plot a bar per kind, and the peak. Returns a Picture."""
        values = {kind: getattr(self, kind) / 2**20 for kind in (*KINDS, "peak")}
        return bars("memory of this process", values, "MiB (2²⁰ bytes)")


def memory_of(step: Callable[[], object], model, optimizer=None) -> Memory:
    """Run `step()` once and measure its memory by kind.

    Activations are the storages that autograd saves for the backward, each counted once, without
    parameters and buffers, as `torch.autograd.graph.saved_tensors_hooks` reports them. The batch
    counts if an operator saves it. A checkpointed block counts with its inputs only; the tensors of
    its second forward count in the peak. Scratch memory inside CPU kernels is not counted.

    Args:
        step: a function without arguments. It may begin with `zero_grad`. Gradients that it sets to
            None after the optimizer's step still count.
        model: a Module, or a list of Modules.
        optimizer: a torch optimizer, or None.

    Raises:
        Any exception of `step`. All hooks are removed.
    """
    modules = [model] if isinstance(model, torch.nn.Module) else list(model)
    inner = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's inner optimizer
    gradients = [0]
    saved = SavedTensors(lambda: storages(own(modules)))
    on_cuda = torch.cuda.is_initialized()
    devices = (p.device for m in modules for p in m.parameters())
    gpu = next((device for device in devices if device.type == "cuda"), None)  # None: the current

    def look(*_):
        gradients.append(bytes_of([p.grad for m in modules for p in m.parameters()]))

    with ExitStack() as stack:
        if optimizer is not None:
            stack.callback(optimizer.register_step_pre_hook(look).remove)
        stack.enter_context(saved)
        live = stack.enter_context(LiveStorages([own(modules), state_of(inner)]))
        if on_cuda:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        step()
    look()
    return Memory(
        parameters=bytes_of([p for m in modules for p in m.parameters()]),
        gradients=max(gradients),
        optimizer=bytes_of(state_of(inner)),
        buffers=bytes_of([b for m in modules for b in m.buffers()]),
        activations=saved.peak,
        peak=live.peak,
        device_peak=torch.cuda.max_memory_allocated(gpu) if on_cuda else None,
    )


def own(modules) -> list:
    """The models' parameters, gradients and buffers."""
    parameters = [p for m in modules for p in m.parameters()]
    # FSDP1 registers views of a gathered row while a module runs; a view has no gradient of its own
    gradients = [p.grad for p in parameters if p.is_leaf]
    return parameters + gradients + [b for m in modules for b in m.buffers()]


def state_of(optimizer) -> list:
    return [] if optimizer is None else list(optimizer.state.values())


def bytes_of(things) -> int:
    """Sum the bytes of all tensors in nested lists, tuples and dicts. A shared storage counts once.

    A view counts with its whole storage, because it keeps the whole storage alive. A sharded tensor
    counts with this rank's shard.
    """
    return sum(storages(things).values())


def storages(things) -> dict[int, int]:
    """Map the identity of each storage to its bytes."""
    return {key(s): s.nbytes() for s in each_storage(things)}


def key(storage) -> int:
    return storage._cdata  # the address of the C++ storage, the same for all views


def each_storage(things) -> Iterator:
    """Yield the storages of all tensors in `things`. A shared storage is repeated."""
    if isinstance(things, torch.Tensor):
        if hasattr(things, "__tensor_flatten__"):  # a tensor of tensors, for example a DTensor
            for name in things.__tensor_flatten__()[0]:
                yield from each_storage(getattr(things, name))
        elif things.layout is torch.strided:  # a sparse tensor has no storage of its own
            yield things.untyped_storage()
    elif isinstance(things, Mapping):
        for thing in things.values():
            yield from each_storage(thing)
    elif isinstance(things, list | tuple):
        for thing in things:
            yield from each_storage(thing)


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Count the storages that autograd saves and releases. `now` and `peak` are in bytes."""

    def __init__(self, excepted: Callable[[], Mapping[int, int]]):
        super().__init__(self._pack, lambda held: held.tensor)
        self._excepted = excepted
        self._holders: dict[int, int] = {}  # storage -> the number of saved tensors that use it
        self.now = self.peak = 0

    def _pack(self, tensor):
        # Ask for the parameters at each new storage: FSDP replaces them while the module runs.
        sizes = storages(tensor)
        if not sizes.keys() <= self._holders.keys():
            excepted = self._excepted()
            sizes = {k: size for k, size in sizes.items() if k not in excepted}
        for k, size in sizes.items():
            if k not in self._holders:
                self.now += size
            self._holders[k] = self._holders.get(k, 0) + 1
        self.peak = max(self.peak, self.now)
        held = Held(tensor)
        weakref.finalize(held, self._release, sizes).atexit = False
        return held

    def _release(self, sizes):
        for k, size in sizes.items():
            self._holders[k] -= 1
            if not self._holders[k]:
                del self._holders[k]
                self.now -= size


class Held:
    """Replaces a saved tensor in the graph. It is deleted when autograd releases the tensor."""

    def __init__(self, tensor):
        self.tensor = tensor


class LiveStorages(TorchDispatchMode):
    """Count the living storages of the inputs and outputs of every operator below autograd.

    Args:
        things: tensors that exist already.
    """

    def __init__(self, things):
        super().__init__()
        self._live: dict[int, tuple[weakref.ref, int]] = {}  # key -> storage, bytes when last seen
        self.now = self.peak = 0
        self._see(things)

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # otherwise the first use imports torch._dynamo, which takes a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the tensor unpacks itself first; then its parts arrive here
        out = func(*args, **(kwargs or {}))
        self._see((args, kwargs, out))
        return out

    def _see(self, things):
        for storage in each_storage(things):
            if storage.device.type == "meta":
                continue  # it has a size, but no memory
            k, size = key(storage), storage.nbytes()
            _, before = self._live.get(k, (None, 0))
            if size != before or k not in self._live:
                # A new storage may reuse the address, but the callback removes the old one first.
                self._live[k] = (weakref.ref(storage, lambda _, k=k: self._gone(k)), size)
                self.now += size - before
        if self.now > self.peak:
            self._look_again()
            self.peak = max(self.peak, self.now)

    def _gone(self, k):
        _, size = self._live.pop(k)
        self.now -= size

    def _look_again(self):
        """Update the sizes: FSDP resizes storages in place, without an operator."""
        for k, (reference, before) in list(self._live.items()):
            storage = reference()
            if storage is not None and (size := storage.nbytes()) != before:
                self._live[k] = (reference, size)
                self.now += size - before
