"""The plain engine: one micro-batch after the other, forward and backward."""

from functools import partial

import torch

from helpers.data.batch import Batch
from helpers.parallel.owners.local import Local
from helpers.parallel.sums import GlobalSum
from helpers.parallel.units import Unit, units


class InTurn:
    """Runs the whole model on each micro-batch, and lets autograd order the backward.

    The owner hears of gradients by autograd's hooks: that is this engine's way, and not the
    contract. An engine that computes gradients itself calls the owner itself.

    Args:
        model: with `loss(batch) -> (sum, count)`.
        owner: of its parameters.

    Attributes:
        sums: the mesh axes along which ranks have losses of their own.
    """

    sums = ("dp",)

    def __init__(self, model: torch.nn.Module, owner: Local):
        self.model, self.owner = model, owner
        self.last = False  # whether the backward of the last micro-batch runs
        self.hooks = []
        if "gradients" in owner.wants:
            for name, p in owner.parameters.items():
                if p.requires_grad:
                    hook = partial(self.gradient_came, name)
                    self.hooks.append(p.register_post_accumulate_grad_hook(hook))
        self.watched = [Watched(unit, owner) for unit in units(model) if "units" in owner.wants]

    def gradient_came(self, name: str, _):
        self.owner.gradient(name, self.last)

    def step(self, micro_batches: list[Batch], tokens: GlobalSum, loss: GlobalSum):
        """Forward and backward of all micro-batches.

        Args:
            tokens: of the global batch; on its way. Each loss is divided by it.
            loss: gets the summed losses, and is sent when all are in.
        """
        for left, batch in zip(reversed(range(len(micro_batches))), micro_batches, strict=True):
            self.last = left == 0
            total, _ = self.model.loss(batch)
            loss.add(total.detach())
            if self.last:
                loss.send()  # it travels during the backward, as the tokens did during the forward
            (total / tokens.wait().clamp(min=1)).backward()
            for watched in self.watched:
                watched.end()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward alone: this rank's summed loss, and its targets."""
        training = self.model.training
        self.model.eval()
        try:
            return self.model.loss(batch)
        finally:
            self.model.train(training)

    def close(self):
        for hook in self.hooks:
            hook.remove()
        for watched in self.watched:
            watched.close()


class Watched:
    """Tells an owner when a unit runs, from the hooks of its module.

    Forward: before and after its call. Backward: before it, and when its gradients are in; a
    forward that is computed again inside of the backward is a part of it.
    """

    def __init__(self, unit: Unit, owner: Local):
        self.unit, self.owner = unit, owner
        self.trained = [p for p in unit.parameters.values() if p.requires_grad]
        self.missing: int | None = None  # gradients of this backward; None outside of it
        module = unit.module
        self.hooks = [
            module.register_forward_pre_hook(lambda *_: self.forward(owner.before)),
            module.register_forward_hook(lambda *_: self.forward(owner.after)),
            module.register_full_backward_pre_hook(lambda *_: self.begin()),
            *(p.register_post_accumulate_grad_hook(self.came) for p in self.trained),
        ]

    def forward(self, tell):
        if torch._C._current_graph_task_id() == -1:
            tell(self.unit)
        elif self.missing is None:
            self.begin()

    def begin(self):
        if self.missing is None:
            self.missing = len(self.trained)
            self.owner.before(self.unit)

    def came(self, _):
        if self.missing is None:  # no output of the module asked for it: a tied one, used elsewhere
            self.begin()
        self.missing -= 1
        if not self.missing:
            self.end()

    def end(self):
        """Of this unit's backward, also where a gradient did not come."""
        if self.missing is not None:
            self.missing = None
            self.owner.after(self.unit)

    def close(self):
        for hook in self.hooks:
            hook.remove()
