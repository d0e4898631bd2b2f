"""The pictures of committed notebooks are sharp, opaque, and described in words."""

import base64
import io
from pathlib import Path

import nbformat
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("week*.ipynb")) + sorted(
    (ROOT / "notebooks").glob("project/*.ipynb")
)
WIDEST = 1000  # CSS pixels; a notebook's column on a laptop
SHORTEST = 30  # letters that say something about a picture


def pictures(nb):
    """(index of the cell, output) of each PNG."""
    for index, cell in enumerate(nb.cells):
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                yield index, output


def wrong_with(output) -> list[str]:
    """What a reader on a sharp screen, on a dark page or with a screen reader would miss."""
    found = output.get("metadata", {}).get("image/png", {})
    image = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
    wrong = []
    if len(found.get("alt", "").split()) < 5 or len(found["alt"]) < SHORTEST:
        wrong.append("no alternative text")
    shown = (found.get("width", 0), found.get("height", 0))
    if shown != (image.width // 2, image.height // 2):
        wrong.append(f"{image.size} pixels for a size of {shown}: not twice")
    if shown[0] > WIDEST:
        wrong.append(f"wider than {WIDEST}")
    paper = image.convert("RGBA")
    on_dark = Image.alpha_composite(Image.new("RGBA", image.size, "#111111"), paper).convert("L")
    edge = on_dark.resize((image.width, 1), box=(0, 0, image.width, 2)).getextrema()[0]
    if edge < 200 or "transparency" in image.info:
        wrong.append("no light, opaque margin")
    return wrong


@pytest.mark.skipif(not NOTEBOOKS, reason="no notebooks yet")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures(path):
    nb = nbformat.read(path, as_version=4)
    assert [(i, wrong) for i, output in pictures(nb) if (wrong := wrong_with(output))] == []


def test_images_of_text_cells_have_an_alternative_text():
    import re

    texts = {path.stem: nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}
    texts = {
        n: [c.source for c in cells if c.cell_type == "markdown"] for n, cells in texts.items()
    }
    for page in (ROOT / "README.md", *(ROOT / "notebooks" / "guide").glob("*.md")):
        texts[page.stem] = [page.read_text(encoding="utf-8")]
    found = [
        (name, hit[0])
        for name, sources in texts.items()
        for text in sources
        for hit in re.finditer(r"!\[([^\]]*)\]\([^)]*\)|<img\b[^>]*>", text)
        if len(hit[1] or "") < SHORTEST and not re.search(rf"alt=.[^'\"]{{{SHORTEST}}}", hit[0])
    ]
    assert found == []
