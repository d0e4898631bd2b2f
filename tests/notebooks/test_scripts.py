"""The scripts beside the notebooks: one learning curve, on any number of ranks, by any launcher.

Tolerance: 1e-12 absolute in float64; the sums over rows are added in another order.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
BIN = Path(sys.executable).parent
MPIEXEC = shutil.which("mpiexec", path=str(BIN)) or shutil.which("mpiexec")


def lines(printed: str) -> list:
    """The lines of JSON in it."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith(("{", "["))]


def run(*command: str) -> list:
    """The lines of JSON that a program prints."""
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return lines(done.stdout)


def curve(rows: list[dict], ranks: int) -> list[float]:
    """The losses, step by step."""
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert {row["ranks"] for row in rows} == {ranks}
    return [row["loss"] for row in rows]


@pytest.fixture(scope="module")
def by_mpi() -> list[list[float]]:
    """The learning curves on 1, 2 and 3 ranks."""
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    driver = Path(__file__).parent / "scripts" / "on_fewer_ranks.py"
    script = str(NOTEBOOKS / "mpi" / "train_gpt.py")
    printed = run(MPIEXEC, "-n", "3", sys.executable, str(driver), script)
    return [curve(rows, ranks) for ranks, (_, rows) in enumerate(printed, 1)]


def test_mpi_learns_the_same_on_any_number_of_ranks(by_mpi):
    one, two, three = by_mpi
    assert two == pytest.approx(one, abs=1e-12)
    assert three == pytest.approx(one, abs=1e-12)
    assert one[-1] < 0.8 * one[0]  # and it does learn


def test_accelerate_and_mpi_and_launch_learn_the_same(by_mpi, capsys):
    script = str(NOTEBOOKS / "accelerate" / "train_gpt.py")
    runpy.run_path(script, run_name="__main__")
    by_launch = curve(lines(capsys.readouterr().out), 2)
    assert by_launch == pytest.approx(by_mpi[1], abs=1e-12)
    by_accelerate = run(str(BIN / "accelerate"), "launch", "--cpu", script)
    assert curve(by_accelerate, 2) == pytest.approx(by_launch, abs=1e-12)
