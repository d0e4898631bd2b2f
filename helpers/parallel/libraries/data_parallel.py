"""PyTorch's own data parallelism: DDP, also behind Accelerate, and with ZeRO stage 1.

These are the oracles for our DDP and for our ZeRO stage 1.
"""

import inspect
from contextlib import nullcontext

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from helpers.comm.transport import GroupTransport
from helpers.parallel.libraries.strategy import Library, Loss, expect
from helpers.parallel.owners.local import like
from helpers.parallel.world import copied
from helpers.state.facts import exchange


class TorchDataParallel(Library):
    """The single process's model in PyTorch's DDP.

    Args:
        config, seed, mesh, dtype, device, optimizer, micro_batches: as for Trainer; the mesh has
            one axis, "dp".
        options: DDP's own: `bucket_cap_mb`, `gradient_as_bucket_view`, `find_unused_parameters`, …
    """

    def make(self, config, seed, dtype, **options):
        self.build(config, seed, dtype)
        self.wrap(Loss(self.model), **options)

    def wrap(self, module: Loss, **options):
        group = self.mesh.group("dp")
        self.replica = DistributedDataParallel(module, process_group=group, **options)

    def loss(self, micro):
        return self.replica(micro)

    def turn(self, last):
        return nullcontext() if last else self.replica.no_sync()


class AccelerateDataParallel(TorchDataParallel):
    """The single process's model, prepared by an `Accelerator`, which detects the ranks.

    It uses PyTorch's DDP. `Accelerator` has one state per process: its group is the whole world.

    Args: as for TorchDataParallel, without options.

    Raises:
        WrongWrapper: Accelerate made something else.
    """

    def wrap(self, module: Loss):
        from accelerate import Accelerator  # imported here because the import takes a second

        self.accelerator = Accelerator(cpu=self.device.type == "cpu")
        self.replica, self.prepared = self.accelerator.prepare(module, self.optimizer)
        expect(self.replica, DistributedDataParallel, "Accelerator.prepare")

    def turn(self, last):
        return nullcontext() if last else self.accelerator.no_sync(self.replica)

    def backward(self, loss):
        self.accelerator.backward(loss)

    def norm(self):
        return self.accelerator.clip_grad_norm_(self.replica.parameters(), self.most)

    def apply(self):
        self.prepared.step()


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
    def put(self, state):
        inner = self.optimizer.optim
        inner.state.clear()
        for name, p in self.parameters.items():
            p.copy_(state["model"][name])
            if name in self.own and name in state["optimizer"]:
                slots = state["optimizer"][name]
                inner.state[p] = {k: like(p, k, copied(v)) for k, v in slots.items()}
