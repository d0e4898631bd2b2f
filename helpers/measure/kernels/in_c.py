"""Compile a source in C for this CPU, and load it."""

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

OPTIONS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")


def loaded(source: str, name: str, *options: str) -> ctypes.CDLL:
    """Compile the text of a source with `cc`, and load the library.

    Args:
        name: of the source, for errors.
        options: further options of the compiler.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler named cc: install gcc or clang")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "made.so")
        command = [compiler, *OPTIONS, *options, "-x", "c", "-", "-o", library, "-lm"]
        made = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"{compiler} could not compile {name}:\n{made.stderr}")
        return ctypes.CDLL(str(library))
