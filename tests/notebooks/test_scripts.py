"""The scripts beside the notebooks: one learning curve, on any number of ranks, by any launcher.

Tolerance: 1e-12 absolute in float64; the sums over rows are added in another order.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
BIN = Path(sys.executable).parent
MPIEXEC = shutil.which("mpiexec", path=str(BIN)) or shutil.which("mpiexec")
needs_mpi = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")


@cache
def curve(*command: str) -> tuple[tuple[float, ...], int]:
    """(the losses, the number of ranks) that a script prints."""
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    (ranks,) = {row["ranks"] for row in rows}
    return tuple(row["loss"] for row in rows), ranks


def by_mpi(script: str, ranks: int):
    found, started = curve(
        MPIEXEC, "-n", str(ranks), sys.executable, str(NOTEBOOKS / "mpi" / script)
    )
    assert started == ranks
    return found


@needs_mpi
@pytest.mark.parametrize("script", ["train_digits.py", "train_gpt.py"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi_learns_the_same_on_any_number_of_ranks(script, ranks):
    one, several = by_mpi(script, 1), by_mpi(script, ranks)
    assert several == pytest.approx(one, abs=1e-12)
    assert one[-1] < 0.8 * one[0]  # and it does learn


@needs_mpi
def test_accelerate_and_mpi_and_launch_learn_the_same():
    script = str(NOTEBOOKS / "accelerate" / "train_gpt.py")
    by_launch, ranks = curve(sys.executable, script)
    assert ranks == 2
    assert by_launch == pytest.approx(by_mpi("train_gpt.py", 2), abs=1e-12)
    by_accelerate, _ = curve(str(BIN / "accelerate"), "launch", "--cpu", script)
    assert by_accelerate == pytest.approx(by_launch, abs=1e-12)
