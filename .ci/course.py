"""The notebooks of the course, and what a cell of theirs is for."""

import sys
from collections.abc import Mapping
from pathlib import Path


def find(root: Path, words=()) -> list[Path]:
    """Return the notebooks of the course below `root`, in order; those whose name has a word."""
    notebooks = root / "notebooks"
    paths = sorted(notebooks.glob("week*.ipynb")) + sorted(notebooks.glob("project/*.ipynb"))
    unknown = [word for word in words if not any(word in path.name for path in paths)]
    if unknown:
        sys.exit(f"no notebook's name contains {unknown[0]!r}")
    return [path for path in paths if not words or any(word in path.name for word in words)]


def slide_type(cell: Mapping) -> str:
    """Return which part of a slide a cell is; "-" if it continues one."""
    return cell["metadata"].get("slideshow", {}).get("slide_type", "-")


def is_note(cell: Mapping) -> bool:
    """Whether a cell is for the speaker alone."""
    return slide_type(cell) == "notes"


def is_deeper(cell: Mapping) -> bool:
    """Whether a cell goes beyond the hour that a notebook plans."""
    return "deeper" in cell["metadata"].get("tags", ())


def is_folded(cell: Mapping) -> bool:
    """Whether JupyterLab folds the code of a cell: what it asserts can be an answer."""
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)
