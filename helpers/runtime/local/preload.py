"""What ranks find imported already: third parties only, and nothing that asks for a GPU."""

import contextlib
import importlib
import importlib.abc
import mmap
import struct
import sys
import time
import weakref

PATIENCE_SECONDS = 3.0  # in all: many calls in a row are to get the second generation too

# What a training step imports: in a fresh process the first optimizer alone takes 1 to 2 seconds.
# A step itself would ask for the current accelerator, and after that no fork could use a GPU.
OF_A_STEP = (
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.utils.data",
    "torch._dynamo",  # not public, and not missed where it is not there
    "torch.profiler._cupti_monitor",
)


def import_first():
    """What every rank needs before its first collective."""
    import cloudpickle  # noqa: F401
    import numpy  # noqa: F401
    import torch.distributed
    import torch.multiprocessing  # noqa: F401


def import_rest():
    """What a training step needs."""
    for name in OF_A_STEP:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def leave_standing():
    """Have a rank's end take down nothing of what was imported here: PyTorch would need 0.1 s."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


class GiveWay(importlib.abc.MetaPathFinder):
    """Between two imports of the second generation, wait while the first has a call to serve.

    Both have the cores to share: without this, the second call of a notebook takes twice as long.
    The word between them is a time, until which to wait, in memory that both see: so nothing that
    happens to the first generation can stop the second for longer.
    """

    def __init__(self):
        self.patience = PATIENCE_SECONDS
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)  # shared with what is forked

    def busy(self, seconds: float):
        """The first generation has something to do, for so long at most; 0: not any more."""
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
