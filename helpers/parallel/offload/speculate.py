"""Speculation, then validation: update while the backward runs, and roll back what was wrong."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait

import torch

from helpers.measure.trace import Span, Trace
from helpers.parallel.offload.front import OnThread, in_front
from helpers.parallel.owners.local import Local
from helpers.parallel.world import copied

COMPUTE, UPDATE = "forward and backward", "update"  # lanes


class Speculative(OnThread):
    """Update a tensor as soon as its gradient is complete, on a thread beside the backward.

    The update supposes that the global norm does not clip, and that every gradient is finite. Both
    are known only after the backward. If that was wrong, the tensors and their moments are rolled
    back, bit for bit, and updated with the clipped gradients, or not at all.

    A gradient is complete in the backward if no sum over ranks is pending, or with ZeRO, when the
    last reduce-scatter of its row has ended. Other tensors (as in DDP) are updated afterwards.

    Until the step's end, memory has a copy of what was updated: with AdamW in float32, 12 bytes a
    parameter. (DeepSpeed has none. It inverts the update, which rounds, and cannot undo a NaN.)

    Attributes:
        rollbacks: the number of steps that were rolled back.
        trace: of the last step: the backward, and the updates beside it.
    """

    def __init__(self, model, parts, mesh, **seams):
        super().__init__(model, parts, mesh, **seams)
        self.wants = self.wants | {"gradients"}
        self.early: dict[str, Future] = {}  # this step's updates, by tensor
        self.kept: dict[str, tuple[torch.Tensor, dict]] = {}  # the tensors and their moments
        self.last, self.final = False, set()  # rows whose last reduce-scatter has started
        self.rollbacks, self.trace = 0, Trace()

    def begin(self):
        super().begin()
        self.last, self.final = False, set()
        self.trace = Trace(began=time.time())

    # when is a gradient complete?

    def gradient(self, name, last):
        self.last = last
        super().gradient(name, last)
        if last and self.values[name] is self.parameters[name]:
            self.speculate(name, self.values[name].grad)

    def send(self, i):
        super().send(i)
        if self.last:
            self.final.add(i)

    def finish(self, i):
        super().finish(i)
        if i in self.final:
            for name, gradient in self.own_gradients(i, self.gradients_of[i].shard).items():
                self.speculate(name, gradient)

    def speculate(self, name: str, gradient: torch.Tensor):
        """Start to update a tensor, if no sum of its gradient is pending."""
        if not self.world.own[name].pending:
            self.early[name] = self.thread.submit(self.update_early, name, gradient)

    def update_early(self, name: str, gradient: torch.Tensor):
        with self.trace.span(name, lane=UPDATE, kind="optimizer"):
            super().collect({name: gradient})
            master = self.masters[name]
            slots = self.optimizer.state.get(master, {}).items()
            self.kept[name] = copied(master), {key: copied(value) for key, value in slots}
            self.advance_only({name})

    def advance_only(self, names: Collection[str]):
        """Make the owner's update of these tensors alone."""
        others = {name: m.grad for name, m in self.masters.items() if name not in names}
        for name in others:
            self.masters[name].grad = None
        super().advance(self.rule)
        for name, gradient in others.items():
            self.masters[name].grad = gradient

    # after the backward

    def complete(self):
        ran = {"start": 0.0, "seconds": time.time() - self.trace.began}
        self.trace.spans.append(Span(name="", lane=COMPUTE, kind="backward", **ran))
        self.settle()
        super().complete()

    def collect(self, own):
        self.settle()  # the last rows were sent after the backward
        super().collect({name: own[name] for name in own if name not in self.early})

    def settle(self):
        """Wait for the updates so far. Raise the error of one that failed."""
        for update in self.early.values():
            update.result()

    def update(self, rule, factor):
        if factor is not None and factor != 1:
            self.roll_back()
        super().update(rule, factor)
        self.early, self.kept = {}, {}

    def advance(self, rule):
        self.advance_only(self.masters.keys() - self.early.keys())

    def skip(self):
        super().skip()
        self.roll_back()

    @torch.no_grad()
    def roll_back(self):
        """Give the tensors that were updated early their values and moments back."""
        wait(self.early.values())
        for name, (value, slots) in self.kept.items():
            self.masters[name].copy_(value)
            self.optimizer.state[self.masters[name]] = slots
        self.rollbacks += bool(self.kept)
        self.early, self.kept = {}, {}

    def timeline(self):
        """Draw the last step: the backward, and the updates beside it. Returns a Picture."""
        return self.trace.plot(lanes=(COMPUTE, UPDATE))


def speculative(owner: Callable = Local) -> Callable:
    """Make an owner that updates while the backward runs: `Recipe(owner=speculative(Zero1), …)`.

    It needs master copies in memory, of a precision such as OnHost() or Mixed().

    Args:
        owner: a class of owners, or a partial of one.

    Source: Lian et al. 2025, SuperOffload (speculation-then-validation).
    """
    return in_front(Speculative, owner)
