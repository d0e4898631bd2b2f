"""Sum a number over ranks while the ranks compute."""

import torch

from helpers.comm.transport import GroupTransport, Work


class GlobalSum:
    """A sum on this rank, then over the ranks of a group.

    Args:
        group: None for a single process.
    """

    def __init__(self, group: GroupTransport | None, device: torch.device | str, start: float = 0):
        self.group = group
        self.total = torch.tensor([start], dtype=torch.float64, device=device)
        self.work: Work | None = None

    def add(self, number: torch.Tensor):
        """Add this rank's number, before `send`."""
        self.total += number

    def send(self) -> "GlobalSum":
        """Start the sum over the ranks. After this, do not call `add`."""
        if self.group is not None:
            self.work = self.group.all_reduce(self.total)
        return self

    def wait(self) -> torch.Tensor:
        """Wait for the sum over all ranks: a scalar in float64."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.total[0]
