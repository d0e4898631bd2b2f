"""Sum a number over ranks while the ranks compute."""

from collections.abc import Sequence

import torch

from helpers.comm.transport import GroupTransport, Work


class GlobalSum:
    """A sum on this rank, then over the ranks of one group after the other.

    Args:
        groups: none for a single process. The sum over the first starts with `send`, the others
            follow in `wait`.
    """

    def __init__(
        self, groups: Sequence[GroupTransport], device: torch.device | str, start: float = 0
    ):
        self.groups = list(groups)
        self.total = torch.tensor([start], dtype=torch.float64, device=device)
        self.work: Work | None = None

    def add(self, number: torch.Tensor):
        """Add this rank's number, before `send`."""
        self.total += number

    def send(self) -> "GlobalSum":
        """Start the sum over the ranks. After this, do not call `add`."""
        if self.groups:
            self.work = self.groups.pop(0).all_reduce(self.total)
        return self

    def wait(self) -> torch.Tensor:
        """Wait for the sum over all ranks: a scalar in float64."""
        while self.work is not None:
            self.work.wait()
            self.work = self.groups.pop(0).all_reduce(self.total) if self.groups else None
        return self.total[0]
