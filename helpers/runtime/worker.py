"""A rank, as the student's function sees it."""

import contextlib
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

TRACK_SECONDS = 0.05  # between two updates of a bar
RESERVED = {"rank", "seconds"}
KINDS = (int, float, str)
DEBUG = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG": "INFO"}


class Worker:
    """A rank, as the student's function sees it: the function's first argument.

    Attributes:
        rank, local_rank, world_size: as in PyTorch.
        device: for this rank's tensors.
        state: yours; on a Cluster it lives on from call to call.

    Its rows and bars go to the `channel`, by `channel.post`.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, channel):
        self.rank = self.local_rank = rank
        self.world_size = world_size
        self.device = device
        self.state = SimpleNamespace()
        self._channel = channel
        self._began = time.perf_counter()

    def __repr__(self):
        return f"Worker(rank={self.rank}, world_size={self.world_size}, device='{self.device}')"

    def log(self, **values):
        """Send a row of numbers or words to the notebook, for `runs.frame()` and the live curve.

        Tensors and arrays of one element become numbers. The call waits for the notebook only if
        64 MB of rows are unread. A call keeps its first million rows.

        Raises:
            ValueError: a name that `log` itself adds.
            TypeError: a value that is neither a number nor a word.
        """
        if not RESERVED.isdisjoint(values):
            raise ValueError(f"worker.log adds {sorted(RESERVED)} itself: use another name")
        for name, value in values.items():
            if type(value) not in (bool, *KINDS):
                values[name] = plain(name, value)
        self._channel.post("log", time.perf_counter() - self._began, values)

    def track(self, iterable, total: int | None = None, label: str = ""):
        """Iterate over `iterable`, and move this rank's bar in the notebook."""
        if total is None:
            with contextlib.suppress(TypeError):  # a generator; a DataLoader of a generator
                total = len(iterable)
        done, shown = 0, 0.0
        self._channel.post("track", label, done, total)
        try:
            for item in iterable:
                yield item
                done += 1
                if (now := time.perf_counter()) - shown > TRACK_SECONDS:
                    shown = now
                    self._channel.post("track", label, done, total)
        finally:
            self._channel.post("track", label, done, total)


def plain(name: str, value: Any):
    if value is None:
        return None
    for kind in KINDS:
        if isinstance(value, kind):  # a member of an Enum, for example: the notebook may lack it
            return kind.__str__(value) if kind is str else kind(value)
    if getattr(value, "numel", lambda: 0)() == 1 or getattr(value, "size", 0) == 1:
        return value.item()
    raise TypeError(
        f"worker.log({name}=…) takes numbers and words, not a {type(value).__name__}"
        f"{f' of shape {tuple(value.shape)}' if hasattr(value, 'shape') else ''}; "
        "return larger things from the function"
    )


def seed_differently(device: torch.device):
    """Seed this rank's generators anew, and those of its GPU, which is the current one.

    A fork inherits the states, and each process starts with the same one for its GPU.
    """
    torch.default_generator.seed()  # torch.seed() would also ask for every kind of accelerator
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if device.type == "cuda":
        torch.cuda.seed()
