"""Owners and engines to test the seams: a sharded optimizer, gradients without hooks."""

import torch

from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.owners.local import Local
from helpers.state.placing import flat


class Sharded(Local):
    """Shard the optimizer over "dp": each rank updates a flat shard of every parameter (ZeRO 1)."""

    def __init__(self, model, parts, mesh, **seams):
        self.mesh = mesh
        super().__init__(model, parts, mesh, **seams)

    def hold(self, parts, mesh):
        shards = {n: flat(mesh, part.completed(), "dp") for n, part in parts.items()}
        values = {
            name: p.detach().view(-1)[slice(*shards[name].flat)].requires_grad_()
            for name, p in self.parameters.items()
        }
        return values, shards

    def complete(self):
        for name, p in self.parameters.items():
            torch.distributed.all_reduce(p.grad, group=self.mesh.group("dp"))
            self.values[name].grad = p.grad.view(-1)[slice(*self.world.own[name].flat)]
        self.precision.collect(self.values, self.masters)

    @torch.no_grad()
    def publish(self):
        for name, p in self.parameters.items():
            mine = torch.zeros_like(p).view(-1)
            mine[slice(*self.world.own[name].flat)] = self.values[name]
            torch.distributed.all_reduce(mine, group=self.mesh.group("dp"))
            p.copy_(mine.view(p.shape))


class ByHand(InTurn):
    """Compute gradients with `autograd.grad`, which runs no hooks of parameters.

    As in a zero-bubble schedule: first all gradients of activations, then those of weights. The
    engine reports them to the owner in its own order.
    """

    def __init__(self, model, owner):
        super().__init__(model, owner)
        for hook in self.hooks:  # of gradients; an owner that wants units still hears of them
            hook.remove()

    def step(self, micro_batches, tokens, loss):
        trained = {n: p for n, p in self.owner.parameters.items() if p.requires_grad}
        for watched in self.watched:
            watched.forget()
        for left, batch in zip(reversed(range(len(micro_batches))), micro_batches, strict=True):
            total, _ = self.model.loss(batch)
            loss.add(total.detach())
            scaled = total / tokens.wait().clamp(min=1)
            gradients = torch.autograd.grad(scaled, list(trained.values()))
            for (name, p), gradient in zip(trained.items(), gradients, strict=True):
                p.grad = gradient if p.grad is None else p.grad + gradient
                self.owner.gradient(name, left == 0)
            for watched in self.watched:
                watched.end()
        loss.send()
