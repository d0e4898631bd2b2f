"""PyTorch's own ZeRO stage 1 as a Strategy: DDP, and a ZeroRedundancyOptimizer."""

import inspect

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from helpers.comm.transport import GroupTransport
from helpers.parallel.libraries.torch_ddp import TorchDataParallel
from helpers.state.facts import exchange


class TorchZeroRedundancy(TorchDataParallel):
    """PyTorch's DDP, and an optimizer that divides whole parameters over the ranks.

    Each rank updates its parameters, and broadcasts them.

    Args:
        config, seed, mesh, options: as for TorchDataParallel.
    """

    def make(self, config, seed, dtype, **options):
        super().make(config, seed, dtype, **options)
        self.transport = GroupTransport(self.mesh.group("dp"))
        plain = self.optimizer
        known = inspect.signature(type(plain)).parameters
        given = {key: value for key, value in plain.defaults.items() if key in known}
        groups = [{k: g[k] for k in ("params", "weight_decay")} for g in plain.param_groups]
        self.optimizer = ZeroRedundancyOptimizer(
            groups, type(plain), self.mesh.group("dp"), parameters_as_bucket_view=True, **given
        )

    @property
    def own(self) -> list[str]:
        """The names of the parameters that this rank updates."""
        inner = self.optimizer.optim
        here = {id(p) for group in inner.param_groups for p in group["params"]}
        return [name for name, p in self.parameters.items() if id(p) in here]

    def full_state(self):
        kept = self.optimizer.optim.state
        told = exchange([{n: sorted(kept[self.parameters[n]]) for n in self.own}])
        slots = {name: keys for (theirs,) in told for name, keys in theirs.items() if keys}
        state: dict[str, dict[str, torch.Tensor]] = {}
        for name in (name for name in self.parameters if name in slots):
            p = self.parameters[name]
            state[name] = {}
            for slot in slots[name]:
                empty = torch.zeros((), device=p.device) if slot == "step" else torch.zeros_like(p)
                value = kept[p][slot].detach().clone() if name in self.own else empty.detach()
                self.transport.all_reduce(value).wait()  # one rank's own, and zeros
                state[name][slot] = value
        return {"model": {n: p.detach().clone() for n, p in self.parameters.items()}} | {
            "optimizer": state
        }

    @torch.no_grad()
    def load(self, state):
        inner = self.optimizer.optim
        inner.state.clear()
        for name, p in self.parameters.items():
            p.copy_(state["model"][name])
            if name in self.own and name in state["optimizer"]:
                slots = state["optimizer"][name]
                inner.state[p] = {slot: value.clone() for slot, value in slots.items()}
