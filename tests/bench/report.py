"""Write a benchmark's result to figures/: a table (Markdown) and its numbers (CSV)."""

import csv
import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

FIGURES = Path(__file__).resolve().parents[2] / "figures"


@dataclass(frozen=True)
class Report:
    """A benchmark's result.

    Attributes:
        name: of its files.
        table: cells as text; the first row is the heading.
        notes: conditions and terms that a reader needs to judge the table.
        rows: the numbers for the CSV; times in seconds.
    """

    name: str
    table: Sequence[Sequence[str]]
    notes: str
    rows: Sequence[dict]

    def markdown(self) -> str:
        return f"{markdown(self.table)}\n\n{self.notes}\n\n*Measured on {machine()}.*\n"

    def write(self, folder: Path = FIGURES):
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.md").write_text(self.markdown(), encoding="utf-8")
        with (folder / f"{self.name}.csv").open("w", newline="", encoding="utf-8") as file:
            file.write(f"# {machine()}\n")
            writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def share_of(row: Mapping) -> str:
    """Format these columns: 0.82 (0.80–0.85)."""
    return f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f})"


def goal_of(row: Mapping, key: str = "goal") -> str:
    """Format a row's goal: ≤ 0.90; empty for no goal."""
    return f"≤ {row[key]:.2f}" if row[key] else ""


def mib(nbytes: float | None) -> str:
    """Format bytes: 1.5 MiB."""
    return "unknown" if nbytes is None else f"{nbytes / 2**20:.1f} MiB"


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Format a table as Markdown, with aligned columns, so that it reads in a terminal too."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def machine() -> str:
    """Describe the machine, without its name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    gpus = f", {torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else ", no GPU"
    return (
        f"{cores} cores, {memory:.0f} GiB{gpus}, {platform.system()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, {datetime.date.today()}"
    )
