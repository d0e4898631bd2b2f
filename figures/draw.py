"""Draw all figures: `make figures`; or only some: `python figures/draw.py cluster`.

Each drawing is a module in this folder, with `draw() -> Figure`.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DRAWINGS = (
    "cluster",
    "starting",
    "collectives",
    "scaling",
    "tensor_parallel",
    "pipeline",
    "zero",
    "adam",
    "decoding",
    "serving",
    "scan",
    "muon",
    "experts",
)
BYTES = 60_000


def main(names):
    sys.path.insert(0, str(HERE))
    for name in names or DRAWINGS:
        figure = importlib.import_module(f"{name}_drawing").draw()
        if figure is None:
            print(f"{name}: no measurement to draw yet; run `make bench` first")
            continue
        path = HERE / f"{name}.png"
        figure.savefig(path, dpi=180)  # about twice the pixels of its width in the README
        shrink(path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def shrink(path: Path):
    """Reduce the number of colours to make the file small. Exit if it is still too large."""
    from PIL import Image

    from helpers.plots.picture import small_png

    path.write_bytes(small_png(Image.open(path).convert("RGB"), limit=BYTES))
    if path.stat().st_size > BYTES:
        raise SystemExit(f"{path.name} has more than {BYTES} bytes; draw less detail")


if __name__ == "__main__":
    main(sys.argv[1:])
