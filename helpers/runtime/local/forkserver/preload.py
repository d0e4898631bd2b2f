"""Import libraries before the ranks need them: third parties only, without asking for a GPU."""

import contextlib
import importlib
import importlib.abc
import mmap
import struct
import sys
import time
import weakref

PATIENCE_SECONDS = 3.0  # in all: the second generation must finish even during many calls

# A training step imports these: in a fresh process the first optimizer alone needs 1 to 2 seconds.
# A step itself would ask for the current accelerator, and after that no fork could use a GPU.
OF_A_STEP = (
    "torch.distributed.checkpoint",  # helpers.state imports it in every rank that trains
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
    "torch._dynamo",  # not public; a PyTorch without it works as well
    "torch.profiler._cupti_monitor",
)


def import_first():
    """Import what every rank needs before its first collective."""
    import cloudpickle  # noqa: F401
    import numpy  # noqa: F401
    import torch.distributed
    import torch.multiprocessing  # noqa: F401


def import_rest():
    """Import what a training step needs."""
    for name in OF_A_STEP:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def leave_standing():
    """Skip these imports' cleanup at a rank's end: PyTorch's cleanup would need 0.1 s."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


class GiveWay(importlib.abc.MetaPathFinder):
    """Pauses the second generation's imports while the first generation serves a call.

    Both share the cores: without the pause, the second call of a notebook needs twice as long. The
    first generation writes a time into memory that both share, and the second waits until then. So
    no accident in the first generation can stop the second for longer.
    """

    def __init__(self):
        self.patience = PATIENCE_SECONDS
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with every fork

    def busy(self, seconds: float):
        """Announce work for so many seconds at most; 0: no work any more."""
        struct.pack_into("d", self.memory, 0, time.monotonic() + seconds)

    def find_spec(self, name, path=None, target=None):
        while self.patience > 0 and (began := time.monotonic()) < self.until():
            time.sleep(0.002)
            self.patience -= time.monotonic() - began

    def until(self) -> float:
        return struct.unpack_from("d", self.memory, 0)[0]

    def __enter__(self):
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_):
        sys.meta_path.remove(self)
