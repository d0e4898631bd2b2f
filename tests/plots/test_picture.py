"""A picture is a PNG to a notebook that has never used pyplot."""

import subprocess
import sys

PROGRAM = """
import sys
from helpers.plots.holdings import holdings
png = holdings({"a": [[1]]})._repr_png_()[0]
assert png.startswith(b"\\x89PNG"), png[:8]
assert "matplotlib.pyplot" not in sys.modules
"""


def test_it_draws_itself():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
