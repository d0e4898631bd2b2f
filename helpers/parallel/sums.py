"""A number on each rank that becomes their sum, while the ranks compute."""

import torch

from helpers.comm.transport import GroupTransport, Work


class GlobalSum:
    """Adds up here, then over the ranks of a group.

    Args:
        group: None where this rank is alone.
    """

    def __init__(self, group: GroupTransport | None, device: torch.device | str, start: float = 0):
        self.group = group
        self.total = torch.tensor([start], dtype=torch.float64, device=device)
        self.work: Work | None = None

    def add(self, number: torch.Tensor):
        """Add this rank's number, before `send`."""
        self.total += number

    def send(self) -> "GlobalSum":
        """Begin to sum over the ranks: nothing can be added any more."""
        if self.group is not None:
            self.work = self.group.all_reduce(self.total)
        return self

    def wait(self) -> torch.Tensor:
        """The sum over all ranks: a scalar in float64."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.total[0]
