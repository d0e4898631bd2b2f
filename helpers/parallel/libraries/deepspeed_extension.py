"""Import DeepSpeed, and compile its extensions once for all ranks.

On a CPU, `deepspeed.initialize` loads an extension for shared memory, and `DeepSpeedCPUAdam` loads
another. PyTorch compiles each at its first use into `TORCH_EXTENSIONS_DIR`: the first takes half a
minute on two cores, the second two minutes. `make setup` compiles the first in the background:

    python -m helpers.parallel.libraries.deepspeed_extension

PyTorch marks a running compilation by a file. If that process is killed, the file stays, and every
later process waits for ever. So a lock of the system, which ends with its process, comes first.
"""

import contextlib
import fcntl
import io
import logging
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

SIGN_OF_LIFE_SECONDS = 20.0
PROJECT = Path(__file__).resolve().parents[3]
_prepared: set[str] = set()  # kinds of devices for which this process is ready


def deepspeed(device: torch.device | str = "cpu") -> ModuleType:
    """Import DeepSpeed for this device, with its extension compiled.

    The first call on a machine compiles; other processes wait for it.

    Raises:
        RuntimeError: DeepSpeed is not installed, there is no C++ compiler, or the compilation
            fails; the message says what to do.
    """
    kind = torch.device(device).type
    # Otherwise DeepSpeed looks for GPUs, although a rank on the CPU does not see them.
    os.environ.setdefault("DS_ACCELERATOR", kind)
    # DeepSpeed calls the collectives of PyTorch by their old names, thousands of times.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    try:
        import deepspeed
    except ImportError as error:
        raise RuntimeError(
            f"DeepSpeed cannot be imported here ({error}). It runs on Linux: install it by "
            "`make setup`, or `DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed`"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it has a line for each of its choices
    if kind == "cpu" and kind not in _prepared:
        compile_extension()
        _prepared.add(kind)
    if dist.is_initialized():
        with contextlib.redirect_stdout(io.StringIO()):  # every rank would print a line
            deepspeed.init_distributed(dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    return deepspeed


def cpu_adam() -> type[torch.optim.Optimizer]:
    """Return the class `DeepSpeedCPUAdam`, with its extension compiled.

    Raises:
        RuntimeError: as `deepspeed`.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    compile_extension(builder="CPUAdamBuilder")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam


def compile_extension(folder: Path | None = None, builder: str = "ShareMemCommBuilder"):
    """Compile and load an extension, unless the folder has it.

    Args:
        folder: by default TORCH_EXTENSIONS_DIR, or else a folder in the project's build/.
        builder: DeepSpeed's class that builds it.

    Raises:
        RuntimeError: no C++ compiler, or the compilation fails.
    """
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise RuntimeError(
            f"DeepSpeed needs a C++ compiler at its first use, and there is no `{compiler}` here. "
            "Install one (Debian, Ubuntu: `apt install g++`; conda: `conda install cxx-compiler`), "
            "or name yours in the variable CXX"
        )
    folder = folder or extensions_folder()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tools = str(Path(sys.executable).parent)  # ninja, also where .venv is not on the PATH
    if tools not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", "")])
    chosen = getattr(import_module("deepspeed.ops.op_builder.cpu"), builder)()
    own = folder / chosen.NAME
    there = (own / f"{own.name}.so").exists()  # then it is only loaded, however slowly
    with signs_of_life(SIGN_OF_LIFE_SECONDS if there else 2.0), locked(folder / f"{own.name}.lock"):
        (own / "lock").unlink(missing_ok=True)  # of a process that was killed
        try:
            chosen.load(verbose=False)
        except Exception as error:
            raise RuntimeError(
                f"DeepSpeed's extension {own.name} could not be compiled by `{compiler}` into "
                f"{own}: {error}. Remove that folder and try again"
            ) from error


def extensions_folder() -> Path:
    """Return the folder for compiled extensions: of this PyTorch and this Python."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    build = PROJECT / "build" if (PROJECT / "pyproject.toml").exists() else Path.home() / ".cache"
    version = f"{torch.__version__}-python{sys.version_info.major}.{sys.version_info.minor}"
    return build / "torch_extensions" / version


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time pass. The lock ends with the process, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def signs_of_life(first: float) -> Iterator[None]:
    """Print during a long compilation, so that a launch does not take it for a hang.

    Args:
        first: seconds until the first line.
    """
    done = threading.Event()

    def speak():
        if not done.wait(first):
            print("compiling an extension of DeepSpeed: once, a minute or two", flush=True)
        while not done.wait(SIGN_OF_LIFE_SECONDS):
            print("still compiling", flush=True)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    try:
        deepspeed()
    except RuntimeError as error:
        sys.exit(f"DeepSpeed is not ready: {error}")
