"""The plain engine: forward and backward of one micro-batch after the other."""

from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from helpers.data.batch import Batch
from helpers.parallel.owners.local import Local
from helpers.parallel.units import Unit, in_backward, units
from helpers.parallel.world import GlobalSum


class InTurn:
    """Run the whole model on each micro-batch. Autograd orders the backward.

    This engine reports gradients to the owner from autograd's hooks. Other engines may compute
    gradients without hooks, and call the owner themselves.

    Args:
        model: has `loss(batch) -> (sum, count)`.
        owner: of the model's parameters.
    """

    def __init__(self, model: torch.nn.Module, owner: Local):
        self.model, self.owner = model, owner
        self.last = False  # whether the last micro-batch is running
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
        """Run forward and backward of all micro-batches.

        Args:
            tokens: the number of targets in the global batch, already being summed. Divides each
                loss.
            loss: collects the summed losses; sent after the last forward.
        """
        for watched in self.watched:
            watched.forget()
        for left, batch in zip(reversed(range(len(micro_batches))), micro_batches, strict=True):
            self.last = left == 0
            total, _ = self.model.loss(batch)
            loss.add(total.detach())
            if self.last:
                loss.send()  # overlaps the backward, as `tokens` overlapped the forward
            scale = self.owner.precision.loss_scale
            (scale * total / tokens.wait().clamp(min=1)).backward()
            for watched in self.watched:
                watched.end()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run only the forward: this rank's summed loss, and its number of targets."""
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
    """Tell an owner when a unit runs, by hooks on the unit's module.

    In the forward: before and after the call. In the backward: before it, and when its gradients
    are complete. A forward that the backward recomputes is part of the backward.
    """

    def __init__(self, unit: Unit, owner: Local):
        self.unit, self.owner = unit, owner
        self.trained = [p for p in unit.parameters.values() if p.requires_grad]
        self.missing: int | None = None  # gradients still to come; None outside the backward
        module = unit.module
        self.hooks = [
            module.register_forward_pre_hook(lambda *_: self.forward(owner.before)),
            module.register_forward_hook(self.ended),
            *(p.register_post_accumulate_grad_hook(self.came) for p in self.trained),
        ]

    def forward(self, tell):
        if in_backward():
            self.begin()
        else:
            tell(self.unit)

    def ended(self, module, inputs, output):
        self.forward(self.owner.after)
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self.begin)  # runs before the unit's backward

    def begin(self, _=None):
        if self.missing is None:
            self.missing = len(self.trained)
            self.owner.before(self.unit)

    def came(self, _):
        if self.missing is None:  # a tied parameter that another module uses: no hook ran before
            self.begin()
        self.missing -= 1
        if not self.missing:
            self.end()

    def end(self):
        """End this unit's backward, even if a gradient is missing."""
        if self.missing is not None:
            self.missing = None
            self.owner.after(self.unit)

    def forget(self):
        """Forget the backward of a step that failed: its missing gradients never come."""
        self.missing = None

    def close(self):
        for hook in self.hooks:
            hook.remove()
