"""What the site runs in a browser imports without PyTorch."""

import subprocess
import sys
from pathlib import Path

HELPERS = Path(__file__).resolve().parent.parent.parent / "helpers"
FREE = ("simulate", "plans", "planner")  # whole packages
RUNS = {"planner.executed"}  # but for modules that run models
LAWS = ("chinchilla", "isoflop", "kaplan", "law", "objective", "planning", "search", "trust")
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module("helpers." + name)
    assert "torch" not in sys.modules, name
"""


def test_no_module_pulls_in_torch():
    files = [file for package in FREE for file in (HELPERS / package).rglob("*.py")]
    names = {".".join(file.relative_to(HELPERS).with_suffix("").parts) for file in files}
    names = sorted(name.removesuffix(".__init__") for name in names - RUNS)
    assert len(names) > 40
    command = [sys.executable, "-c", PROGRAM, *names, *(f"scaling.{law}" for law in LAWS)]
    done = subprocess.run(command, cwd=HELPERS.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
