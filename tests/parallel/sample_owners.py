"""An engine to test the seams: gradients without hooks."""

import torch

from helpers.parallel.engines.in_turn import InTurn


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
