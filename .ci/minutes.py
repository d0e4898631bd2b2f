"""Print the minutes that a student needs for the main path of each notebook, counted by rule.

    minutes.py [words]   only the notebooks whose names contain one of the words

The main path is what is not tagged `deeper`, is no exercise, and is no note for the speaker. Run
times are not counted: a notebook runs in less than two minutes.
"""

import json
import re
import sys
from collections.abc import Iterable
from itertools import dropwhile, takewhile
from pathlib import Path

from course import find, is_deeper, is_note

ROOT = Path(__file__).resolve().parent.parent
# A student reads 150 words in a minute, understands six lines of code, and needs three minutes to
# think about a number, to write it down and to compare it with what came out.
WORDS, LINES, PREDICTION = 150, 6, 3
EXERCISES = re.compile(r"## (\d+ · )?Exercises")


def main_path(cells: Iterable[dict]) -> list[dict]:
    """Return the cells of an hour: without notes, exercises, and what goes deeper."""
    cells = [cell for cell in cells if not (is_note(cell) or is_deeper(cell))]

    def others(cell: dict) -> bool:
        return not EXERCISES.match("".join(cell["source"]))

    def goes_on(cell: dict) -> bool:
        return not "".join(cell["source"]).startswith("## What to remember")

    return [*takewhile(others, cells), *dropwhile(goes_on, dropwhile(others, cells))]


def count(cells: Iterable[dict]) -> dict[str, int]:
    """Return the numbers of cells, words, lines of code and predictions, and the minutes."""
    cells = list(cells)
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    # Folded answers count: a student reads them. Their HTML does not.
    words = sum(len(re.sub(r"<[^>]+>|[|*`-]+", " ", text).split()) for text in texts)
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    codes = [re.sub(r"(?m)^(from .* import) \([^)]*\)", r"\1 …", code) for code in codes]
    predictions = sum(code.startswith("# Predict") for code in codes)
    hidden = ("import ", "from ", "assert ", "#", "plots.", "check.", "prediction_")
    lines = sum(
        bool(line.strip()) and not line.strip().startswith(hidden)
        for code in codes
        for line in code.splitlines()
    )
    minutes = round(words / WORDS + lines / LINES + predictions * PREDICTION)
    return {
        "cells": len(texts) + len(codes),
        "words": words,
        "lines": lines,
        "predictions": predictions,
        "minutes": minutes,
    }


def of(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counts of a notebook's main path, and of what goes deeper."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return count(main_path(cells)), count(filter(is_deeper, cells))


def main(words: list[str]):
    for path in find(ROOT, words):
        print(path.stem)
        for name, found in zip(("main path", "deeper"), of(path), strict=True):
            print(f"    {name:9}", ", ".join(f"{number} {kind}" for kind, number in found.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
