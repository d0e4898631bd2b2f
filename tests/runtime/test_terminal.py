"""Words for a terminal that may not know all letters."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runtime.terminal import put

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", b"\\u2026 \\xd7"), ("utf-8", "… ×".encode())]
)
def test_put(tmp_path, encoding, expected):
    with open(tmp_path / "out", "w", encoding=encoding) as stream:
        put("… ×", stream)
        assert (tmp_path / "out").read_bytes() == expected


def test_a_whole_call_in_an_ascii_terminal(tmp_path):
    """Prints, bars, too many lines, an edited file, an error, a result."""
    script = tmp_path / "script.py"
    script.write_text(
        """
from helpers import Cluster, WorkerError, launch

def talk(worker):
    print("α…×" * 3)
    print("x" * 5000)
    for _ in worker.track(range(3), label="Schritte →"):
        pass
    for _ in range(1500):
        print("é")
    worker.log(Größe=1.0)
    return "u" * 200

def fail(worker):
    raise ValueError("… ≠ …")

print(launch(talk, live="Größe"))
launch(talk, workers=1, live="none")
try:
    launch(fail)
except WorkerError as error:
    print(ascii(str(error)))
"""
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, done.stderr
    assert r"[rank 0] \u03b1\u2026\xd7" in done.stdout
    assert "more lines are in" in done.stdout
    assert re.search(r"rank \d raised ValueError", done.stdout)
