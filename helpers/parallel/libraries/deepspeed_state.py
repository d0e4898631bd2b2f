"""The training state of a DeepSpeed engine, out and in by the plain model's names and shapes.

DeepSpeed flattens the parameters of each group into one tensor, and cuts that into one shard for
each rank. Its functions `safe_get_full_…` gather a parameter's own piece, by the plain shape.
"""

import contextlib
from collections.abc import Mapping

import torch

from helpers.parallel.libraries.strategy import Library

CLIPPED = "clipped gradient"  # a slot beside the optimizer's own, while full_gradients gathers it


class DeepSpeedState(Library):
    """A Library whose `engine` is DeepSpeed's: gathers and loads what it trains.

    Attributes:
        library: DeepSpeed.
        engine: made by `deepspeed.initialize`.
        stage: of ZeRO.
        clipped: this rank's clipped gradients of the last step, by the `id` of the optimizer's
            tensor.
    """

    stage: int
    clipped: dict[int, torch.Tensor]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """PyTorch's optimizer, inside DeepSpeed's for the stages 1 to 3."""
        outer = self.engine.optimizer
        return outer if self.stage == 0 else outer.optimizer

    @property
    def flats(self) -> list[torch.Tensor]:
        """The tensors that the optimizer updates: this rank's shards, or in stage 0 everything."""
        if self.stage == 3:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def full_gradients(self) -> dict[str, torch.Tensor]:
        trained, clipped = self.trained(), self.clipped
        if self.stage == 0:
            return {n: clipped[id(p)].clone() for n, p in trained.items() if id(p) in clipped}
        for flat in self.flats:
            self.optimizer.state[flat][CLIPPED] = clipped[id(flat)]
        self.link()
        full = {name: self.slot(p, CLIPPED) for name, p in trained.items()}
        for flat in self.flats:
            del self.optimizer.state[flat][CLIPPED]
        self.link()
        return full

    def full_state(self) -> dict:
        trained = self.trained()
        with torch.no_grad():
            model = {name: self.value(p) for name, p in self.parameters.items()}
        kept = [slots for slots in self.optimizer.state.values() if slots]
        if not kept:
            return {"model": model, "optimizer": {}}
        if self.stage == 0:
            every = {name: self.optimizer.state[p] for name, p in trained.items()}
            slots = {
                name: {key: torch.as_tensor(value).clone() for key, value in own.items()}
                for name, own in every.items()
                if own
            }
            return {"model": model, "optimizer": slots}
        self.link()
        first = kept[0]
        slots = {
            name: {
                key: self.slot(p, key) if is_slot(value) else torch.as_tensor(value).clone()
                for key, value in first.items()
            }
            for name, p in trained.items()
        }
        return {"model": model, "optimizer": slots}

    @torch.no_grad()
    def put(self, state: Mapping):
        self.clipped = {}
        for name, p in self.parameters.items():
            self.write(p, state["model"][name])
        self.optimizer.state.clear()
        saved = {n: state["optimizer"][n] for n in self.trained() if state["optimizer"].get(n)}
        if not saved:
            return
        if self.stage == 0:
            for name, slots in saved.items():
                self.optimizer.state[self.parameters[name]] = {
                    key: torch.as_tensor(value).clone() for key, value in slots.items()
                }
            return
        for flat in self.flats:  # DeepSpeed would create the state in its first update
            self.optimizer.state[flat] = {
                key: torch.zeros_like(flat) if is_slot(value) else torch.as_tensor(value).clone()
                for key, value in next(iter(saved.values())).items()
            }
        self.link()
        for name, slots in saved.items():
            for key, value in slots.items():
                if is_slot(value):
                    self.write(self.parameters[name], value, key)

    def value(self, p: torch.nn.Parameter) -> torch.Tensor:
        """A parameter, whole: its master copy if there is one."""
        if self.stage and p.requires_grad:
            return self.library.utils.safe_get_full_fp32_param(p).clone()
        with self.gathered(p):
            return p.detach().clone()

    def slot(self, p: torch.nn.Parameter, key: str) -> torch.Tensor:
        """One of the optimizer's tensors for a parameter, whole."""
        return self.library.utils.safe_get_full_optimizer_state(p, key).clone()

    def write(self, p: torch.nn.Parameter, value: torch.Tensor, key: str | None = None):
        """Write a parameter and its master copy, or with a key one of the optimizer's tensors."""
        value, utils = value.to(self.device, torch.float32), self.library.utils
        if key is None:
            with self.gathered(p, write=True):
                p.copy_(value)
        if not self.stage or not p.requires_grad:
            return
        if self.stage == 3:
            own = shard_of(value, p.ds_tensor.numel(), self.data_rank)
            if key is None:
                utils.safe_set_local_fp32_param(p, own)
            else:
                utils.safe_set_local_optimizer_state(p, own, key)
        elif key is None:
            utils.safe_set_full_fp32_param(p, value)
        else:
            utils.safe_set_full_optimizer_state(p, value, key)

    def gathered(self, p: torch.nn.Parameter, write: bool = False):
        """A context in which a parameter of stage 3 is whole; rank 0's changes are kept."""
        if self.stage < 3:
            return contextlib.nullcontext()
        return self.library.zero.GatheredParameters([p], modifier_rank=0 if write else None)

    def link(self):
        """Show DeepSpeed the optimizer's present tensors.

        By itself it looks once: in its first update, after the first group of parameters.
        """
        if self.stage in (1, 2):
            outer = self.engine.optimizer
            for params, flat in zip(outer.bit16_groups, self.flats, strict=True):
                self.library.utils.lazy_init_hp_params_optimizer_state(
                    params, flat, self.optimizer.state
                )


def shard_of(value: torch.Tensor, size: int, rank: int) -> torch.Tensor:
    """This rank's piece of a flattened tensor, padded with zeros."""
    flat = value.flatten()
    padded = torch.zeros(size * (rank + 1), dtype=flat.dtype, device=flat.device)
    there = min(flat.numel(), padded.numel())
    padded[:there] = flat[:there]
    return padded[size * rank :]


def is_slot(value) -> bool:
    """Whether an optimizer's value has the parameter's shape; the step count does not."""
    return isinstance(value, torch.Tensor) and value.ndim > 0
