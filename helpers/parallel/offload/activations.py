"""Activations in host memory: what autograd saves in the forward waits there for the backward."""

import weakref
from collections.abc import Callable
from typing import Self

import torch

from helpers.measure.memory import key, own, storages
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.offload.disk import in_front
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

    def bytes_on_device(self) -> torch.Tensor:
        if self.back is None:
            self.back = torch.empty(self.host.shape, dtype=torch.uint8, device=self.device)
            self.link.up(self.host, self.back)
            self.link.wait_on_device()
        self.uses -= 1
        back = self.back
        if not self.uses:
            self.back = None
        return back


class View:
    """A saved tensor: its place in a storage."""

    def __init__(self, kept: Kept, tensor: torch.Tensor):
        self.kept = kept
        kept.uses += 1
        self.dtype, self.size, self.stride = tensor.dtype, tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()

    def tensor(self) -> torch.Tensor:
        storage = self.kept.bytes_on_device().untyped_storage()
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


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
        return View(kept, tensor)

    def unpack(self, packed):
        return packed.tensor() if isinstance(packed, View) else packed


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
