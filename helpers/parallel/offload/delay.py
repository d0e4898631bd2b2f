"""Delayed update: the host updates with the last step's gradients while this step computes."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import torch

from helpers.parallel.offload.front import OnThread, in_front
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.owners.local import Local

LATE = "each update has the gradients of parameters that are one update older"
# As for Strategy. Measured with a GPT of 26 thousand parameters, 20 steps, five seeds, AdamW with
# eps = 1e-4, and no warm-up: 0.155 to 0.192. That is at AdamW's rate of 1e-3: the distance grows
# with the rate. At 3e-3, 12 steps of a GPT of 105 thousand parameters gave 0.54.
BOUND = 0.4


class Delayed(OnThread):
    """Update one step late, on a thread beside the next step.

    Step t computes with the parameters after update t-2. Its own update runs during step t+1. So
    training is another than one process's, and `lossy` says so. Loss and norms are exact for the
    parameters that a step has.
    """

    warm_up: int
    unsaved = "the parameters before the last update, of which the next step's gradients are"

    def __init__(self, model, parts, mesh, *, rule, **seams):
        super().__init__(model, parts, mesh, rule=rule, **seams)
        self.lossy = ", and ".join(filter(None, (LATE, self.lossy)))
        self.bound = max(BOUND, self.bound)
        # The optimizer's own names for the masters: their gradients last while a step makes others.
        trained = {name: m for name, m in self.masters.items() if m.requires_grad}
        self.updated = {name: m.detach().requires_grad_() for name, m in trained.items()}
        self.optimizer = rule.make(self.updated, self.world.own)
        self.running: Future | None = None
        self.waiting: tuple[OptimizerConfig, dict[str, torch.Tensor]] | None = None
        self.updates = 0

    def advance(self, rule):
        self.settle()  # the last step's update has had this whole step to end
        self.waiting = rule, self.gradients()
        if self.updates < self.warm_up:
            self.start()
            self.settle()
        self.updates += 1

    def publish(self):
        super().publish()  # the parameters are copied by now: the masters may change
        self.start()

    def start(self):
        """Start the update that waits, if there is any, on the thread."""
        if self.waiting is not None:
            self.running = self.thread.submit(self.step_late, *self.waiting)
            self.waiting = None

    def step_late(self, rule: OptimizerConfig, gradients: Mapping[str, torch.Tensor]):
        for name, tensor in self.updated.items():
            tensor.grad = gradients.get(name)
        set_lr(self.optimizer, rule.lr)
        self.optimizer.step()

    def settle(self):
        """Wait for the running update."""
        if self.running is not None:
            running, self.running = self.running, None
            running.result()

    def moments(self):
        self.settle()
        kept = {name: self.optimizer.state.get(own) for name, own in self.updated.items()}
        return {name: slots for name, slots in kept.items() if slots}

    def load(self, state):
        self.settle()
        super().load(state)

    def take(self, moments):
        super().take(moments)
        self.updates = max((int(slots.get("step", 0)) for slots in moments.values()), default=0)
        for name, own in self.updated.items():
            if slots := self.optimizer.state.pop(self.masters[name], None):
                self.optimizer.state[own] = slots


def delayed(owner: Callable = Local, *, warm_up: int = 0) -> Callable:
    """Make an owner that updates one step late: `Recipe(owner=delayed(), precision=OnHost())`.

    It needs master copies in memory, of a precision such as OnHost() or Mixed().

    Args:
        owner: a class of owners, or a partial of one.
        warm_up: the number of first updates that are not delayed, while gradients change fast. The
            paper waits for 40.

    Source: Ren et al. 2021, ZeRO-Offload, section 5.2 (one-step delayed parameter update).
    """
    return in_front(Delayed, owner, {"warm_up": warm_up})
