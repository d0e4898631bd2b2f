"""Speculation, then validation: update while the backward still runs, and undo what was wrong."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from helpers.measure.trace import Span
from helpers.parallel.offload.blocks import drawn
from helpers.parallel.offload.disk import OnDisk, in_front
from helpers.parallel.optimizer import set_lr
from helpers.parallel.owners.local import Local


class Speculative:
    """Update a tensor as soon as its gradient is complete. It goes in front of an owner's class.

    The update guesses that the global norm will not clip, and that no gradient is NaN or infinite.
    Both are known only after the backward. If a guess was wrong, the tensors and their moments are
    copied back, bit for bit, and updated with the clipped gradients, or not at all.

    A gradient is complete in the backward if no sum over ranks is pending (one process), or when
    the reduce-scatter of its row has ended (ZeRO), and no further sum is pending. Other tensors are
    updated after the backward, as usual.

    Args:
        others: as for the owner.

    Attributes:
        undone: the number of steps whose guess was wrong.
        spans: of the last step: the backward, and the updates on a thread of their own.

    Raises:
        ValueError: the optimizer updates the parameters themselves, which the backward still uses;
            or its state is on disk.

    Source: Lian et al. 2025, "SuperOffload: Unleashing the Power of Large-Scale LLM Training on
    Superchips", arXiv:2509.21271 (speculation-then-validation).
    """

    def __init__(self, model, parts, mesh, *, rule, **seams):
        super().__init__(model, parts, mesh, rule=rule, **seams)
        trained = {name: m for name, m in self.masters.items() if m.requires_grad}
        if isinstance(self, OnDisk) or any(m is self.values[n] for n, m in trained.items()):
            raise ValueError(
                "speculation needs master copies in memory, because the backward still uses the "
                "parameters: use a precision such as Mixed() or OnHost()"
            )
        self.wants = self.wants | {"gradients"}
        self.alone = {name: rule.make({name: m}, self.world.own) for name, m in trained.items()}
        for optimizer in self.alone.values():
            optimizer.state = self.optimizer.state
        self.in_rows = getattr(self, "row_of", {})
        self.guesser = ThreadPoolExecutor(1)
        self.guesses: dict[str, Future] = {}  # tensors that this step has updated already
        self.copies: dict[str, tuple[torch.Tensor, dict]] = {}  # of them, as they were before
        self.undone, self.spans = 0, []
        self.last, self.final = False, set()  # rows whose last reduce-scatter has started

    def begin(self):
        self.undo()  # of a step that failed
        super().begin()
        self.last, self.spans, self.began = False, [], time.perf_counter()
        self.final.clear()

    # when is a gradient complete?

    def gradient(self, name, last):
        self.last = last
        super().gradient(name, last)
        summed = self.world.own[name].pending or self.replicas_of[name] or name in self.in_rows
        if last and not summed:
            self.guess({name: self.values[name].grad})

    def send(self, i):
        super().send(i)
        if self.last:
            self.final.add(i)

    def finish(self, i):
        super().finish(i)
        if i in self.final:
            gradients, row = self.gradients_of[i], self.rows[i].row
            rank = gradients.transport.rank
            whole = [n for n in gradients.parameters if not self.world.own[n].pending]
            self.guess({name: gradients.shard[row.inside(name, rank)] for name in whole})

    def guess(self, own: Mapping[str, torch.Tensor]):
        """Start to update these tensors: their gradients, by name, are complete."""
        if again := own.keys() & self.guesses.keys():
            raise RuntimeError(f"{min(again)} got a gradient after its gradient was complete")
        for name, gradient in own.items():
            self.guesses[name] = self.guesser.submit(self.advance_one, name, gradient)

    def advance_one(self, name: str, gradient: torch.Tensor):
        start = time.perf_counter() - self.began
        super().collect({name: gradient})
        master, optimizer = self.masters[name], self.alone[name]
        slots = {k: v.clone() for k, v in self.optimizer.state.get(master, {}).items()}
        self.copies[name] = master.detach().clone(), slots
        set_lr(optimizer, self.rule.lr)
        optimizer.step()
        self.record(name, "update", "optimizer", start)

    def record(self, name: str, lane: str, kind: str, start: float):
        seconds = time.perf_counter() - self.began - start
        self.spans.append(Span(name=name, lane=lane, kind=kind, start=start, seconds=seconds))

    # after the backward

    def complete(self):
        self.record("", "forward and backward", "backward", 0.0)
        self.raise_errors()
        super().complete()
        self.raise_errors()  # for the rows that were still being sent

    def collect(self, own):
        super().collect({name: own[name] for name in own if name not in self.guesses})

    def raise_errors(self):
        """Wait for the updates so far, and raise what one of them raised."""
        for guess in list(self.guesses.values()):
            guess.result()

    def update(self, rule, factor):
        if factor is not None and factor != 1:
            self.undo()
        done = {name: self.masters[name].grad for name in self.guesses}
        for name in done:
            self.masters[name].grad = None  # so that they are not updated again
        super().update(rule, factor)
        for name, gradient in done.items():
            self.masters[name].grad = gradient
        self.forget()

    def skip(self):
        super().skip()
        self.undo()

    @torch.no_grad()
    def undo(self):
        """Give all tensors that were updated too early their values and moments back."""
        wait(self.guesses.values())  # one of them may have failed
        for name, (value, slots) in self.copies.items():
            self.masters[name].copy_(value)
            self.optimizer.state.pop(self.masters[name], None)
            if slots:
                self.optimizer.state[self.masters[name]] = slots
        self.undone += bool(self.copies)
        self.forget()

    def forget(self):
        self.guesses, self.copies = {}, {}

    def timeline(self):
        """Draw the last step: the backward, and the updates beside it. Returns a Picture."""
        return drawn(self.spans, ("forward and backward", "update"))

    def close(self):
        super().close()
        self.guesser.shutdown()


def speculative(owner: Callable = Local) -> Callable:
    """Make an owner that updates while the backward runs: `Recipe(owner=speculative(Zero1), …)`.

    Args:
        owner: a class of owners, or a partial of one.
    """
    return in_front(Speculative, owner, {})
