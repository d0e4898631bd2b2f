"""Balance without a loss: after each step, the bias of the choice of experts moves by their loads.

Source: DeepSeek-V3, arXiv:2412.19437, section 2.1.2, "Auxiliary-loss-free load balancing".
"""

from collections.abc import Sequence

import torch

from helpers.comm.transport import GroupTransport
from helpers.models.experts.layer import Router
from helpers.parallel.owners.local import Local
from helpers.state.slicing import take


class Balance:
    """The biases of a model's routers. The optimizer knows nothing of them: they have no gradient.

    The loads are summed over micro-batches and ranks, so the biases are those of one process.

    Args:
        owner: of the model's parameters.
        groups: this rank's groups along the axes with different tokens.
    """

    def __init__(self, model: torch.nn.Module, owner: Local, groups: Sequence[GroupTransport]):
        self.owner, self.groups = owner, groups
        self.routers = {
            f"{path}.balance": module
            for path, module in model.named_modules()
            if isinstance(module, Router) and module.balance is not None
        }

    def begin(self):
        """Forget loads of forwards outside of a step, or of one that failed."""
        for router in self.routers.values():
            router.take_loads()

    @torch.no_grad()
    def update(self):
        """Move each bias by its rate: up, if its expert had fewer tokens than the mean.

        All ranks of a group call it, in the same order: it sends one message along each axis.
        """
        if not self.routers:
            return
        every = [router.take_loads() for router in self.routers.values()]
        loads = torch.cat([own.double() for own in every])  # whole numbers: the sum is exact
        for group in self.groups:
            group.all_reduce(loads).wait()
        sizes = [len(own) for own in every]
        for (name, router), own in zip(self.routers.items(), loads.split(sizes), strict=True):
            change = router.settings.bias_rate * (own.mean() - own).sign()
            master = self.owner.masters[name]
            master += take(self.owner.world.own[name], change).to(master)
