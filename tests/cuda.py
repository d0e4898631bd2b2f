"""A double of `torch.cuda` that notes its calls in order: for branches of the GPU, on the CPU.

A call that names no GPU is for the current one. Each GPU has a queue of work, with a clock of its
own; work ends when somebody waits for it. As on a GPU, the time between two events is an error if
they are on two GPUs, or if one of them has not ended.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode


class Reads(TorchFunctionMode):
    """Notes each read of a tensor's numbers: a GPU ends all its work before each.

    Attributes:
        shapes: of the tensors read, in order.
    """

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
            self.shapes.append(tuple(args[0].shape))
        return function(*args, **(kwargs or {}))


class Cuda:
    """Put the double in the place of `torch.cuda`'s functions.

    Args:
        patch: pytest's monkeypatch.
        used: has this process used CUDA?

    Attributes:
        calls: (name, GPU) of each call that does something, in order.
        now: by GPU, the second at which its queue ends; over: until when it has been waited for.
    """

    def __init__(self, patch, gpus: int = 3, used: bool = True, peak: int = 7000):
        self.calls, self.current, self.used, self.peak = [], 0, used, peak
        self.now, self.over = [50.0] * gpus, [50.0] * gpus
        for name in (
            "device", "set_device", "current_device", "device_count", "is_initialized",
            "synchronize", "current_stream", "Event", "seed", "reset_peak_memory_stats",
            "max_memory_allocated",
        ):  # fmt: skip
            patch.setattr(torch.cuda, name, getattr(self, name))

    def note(self, name: str, device=None) -> int:
        gpu = self.index(device)
        self.calls.append((name, gpu))
        return gpu

    def index(self, device) -> int:
        if device is not None and not isinstance(device, int):
            assert torch.device(device).type == "cuda"
            device = torch.device(device).index
        return self.current if device is None else device

    def work(self, seconds: float = 1.0, device=None):
        """Put work into a queue, as a kernel's launch does."""
        self.now[self.note("work", device)] += seconds

    def end(self, gpu: int, second: float):
        self.over[gpu] = max(self.over[gpu], second)

    # --- torch.cuda's own names ---

    @contextmanager
    def device(self, device):
        before, self.current = self.current, self.index(device)
        self.calls.append(("enter", self.current))
        yield
        self.calls.append(("leave", self.current))
        self.current = before

    def set_device(self, device):
        self.current = self.note("set_device", device)

    def current_device(self):
        return self.current

    def device_count(self):
        return len(self.now)

    def is_initialized(self):
        return self.used

    def synchronize(self, device=None):
        gpu = self.note("synchronize", device)
        self.end(gpu, self.now[gpu])

    def current_stream(self, device=None):
        return self.index(device)

    def Event(self, enable_timing=False):
        return Event(self, enable_timing)

    def seed(self):
        self.note("seed")

    def reset_peak_memory_stats(self, device=None):
        self.note("reset_peak_memory_stats", device)

    def max_memory_allocated(self, device=None):
        self.note("max_memory_allocated", device)
        return self.peak


class Event:
    def __init__(self, cuda: Cuda, timed: bool):
        self.cuda, self.timed = cuda, timed

    def record(self, stream=None):
        self.gpu = self.cuda.note("record", stream)
        self.at = self.cuda.now[self.gpu]

    def synchronize(self):
        self.cuda.note("wait", self.gpu)
        self.cuda.end(self.gpu, self.at)

    def elapsed_time(self, other) -> float:
        assert self.timed
        assert other.timed
        assert self.gpu == other.gpu, "events of two GPUs"
        for event in (self, other):
            assert event.at <= self.cuda.over[self.gpu], "the event has not ended"
        return (other.at - self.at) * 1e3
