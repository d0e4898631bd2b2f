"""Activations in host memory: what autograd saves in the forward waits there for the backward."""

import weakref
from collections.abc import Callable
from typing import Self

import torch

from helpers.measure.memory import key, own, storages
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.offload.front import in_front
from helpers.parallel.offload.link import Link


class Kept:
    """One storage in host memory, for all saved tensors that are views of it.

    It is copied there once, and back once: the copy on the device stays until the last of these
    tensors has been used.
    """

    def __init__(self, storage: torch.UntypedStorage, link: Link):
        self.link, self.device, self.uses = link, storage.device, 0
        self.host = link.down(of_bytes(storage))
        self.back: torch.Tensor | None = None

    def view(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Note that this tensor is saved. Returns a function that gives it back, on the device."""
        self.uses += 1
        dtype, offset = tensor.dtype, tensor.storage_offset()
        size, stride = tensor.size(), tensor.stride()

        def back() -> torch.Tensor:
            storage = self.on_device()
            empty = torch.empty(0, dtype=dtype, device=self.device)
            return empty.set_(storage, offset, size, stride)

        return back

    def on_device(self) -> torch.UntypedStorage:
        if self.back is None:
            self.back = torch.empty_like(self.host, device=self.device)
            self.link.up(self.host, self.back)
            self.link.wait_on_device()
        storage = self.back.untyped_storage()
        self.uses -= 1
        if not self.uses:
            self.back = None
        return storage


class ActivationsOnHost(torch.autograd.graph.saved_tensors_hooks):
    """Send what autograd saves to the host, and bring it back for the backward.

    Use it in a `with` around the forward. Parameters and buffers stay where they are, and so do
    tensors that are not dense. A recomputed block saves its inputs alone, so these are sent: the
    activation checkpoints of ZeRO-Infinity.

    A storage of several saved tensors is sent once, unless it was written to in between.

    Args:
        models: whose parameters and buffers stay.

    Attributes:
        link: counts the bytes.

    Source: Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2 (activation checkpoints).
    """

    def __init__(self, *models: torch.nn.Module):
        super().__init__(self.pack, self.unpack)
        self.models, self.link = models, Link()
        # (storage, version) -> its copy, as long as a saved tensor needs it
        self.sent: weakref.WeakValueDictionary[tuple, Kept] = weakref.WeakValueDictionary()
        self.alive: dict[int, weakref.ref] = {}  # storages that were sent and are still there

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def pack(self, tensor: torch.Tensor):
        dense = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not dense or tensor.layout is not torch.strided or not tensor.numel():
            return tensor
        storage = tensor.untyped_storage()
        address, version = key(storage), tensor._version
        kept = self.sent.get((address, version)) if address in self.alive else None
        if kept is None:
            if address in storages(own(self.models)):
                return tensor
            kept = self.sent[address, version] = Kept(storage, self.link)
            # another storage may get the address of one that is gone
            self.alive[address] = weakref.ref(storage, lambda _: self.alive.pop(address, None))
        return kept.view(tensor)

    def unpack(self, packed):
        return packed if isinstance(packed, torch.Tensor) else packed()


def of_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a storage as a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class Offloading:
    """Send activations to the host. It goes in front of an engine's class.

    Attributes:
        activations: counts the bytes: `trainer.engine.activations.link.to_host`.
    """

    def __init__(self, model, owner):
        super().__init__(model, owner)
        self.activations = ActivationsOnHost(model)

    def step(self, micro_batches, tokens, loss):
        with self.activations:
            super().step(micro_batches, tokens, loss)


def activations_on_host(engine: Callable = InTurn) -> Callable:
    """Make an engine whose activations wait in host memory: `Recipe(engine=activations_on_host())`.

    Args:
        engine: a class of engines: InTurn, or Pipeline for a layout with pp.
    """
    return in_front(Offloading, engine, {})
