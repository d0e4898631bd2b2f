"""What the site runs in a browser imports without PyTorch."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FREE = ("simulate", "plans", "scaling")
TRAINS = {"design", "families", "optimizers", "sweep", "table"}  # of scaling: they need the models
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""


def test_no_module_pulls_in_torch():
    files = [file for package in FREE for file in (ROOT / "helpers" / package).rglob("*.py")
             if (package, file.stem) not in {("scaling", name) for name in TRAINS}]  # fmt: skip
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    names = sorted(name.removesuffix(".__init__") for name in names)
    assert len(names) > 40
    command = [sys.executable, "-c", PROGRAM, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
