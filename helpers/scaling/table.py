"""The table of a sweep: a CSV file that gains a row per run, and survives a killed process."""

import csv
import json
import os
import platform
from pathlib import Path

import torch

from helpers.data.blocks import pack
from helpers.runtime.devices import cores
from helpers.scaling.design import BATCH, LENGTH

TABLE = Path(__file__).with_name("sweep.csv")
_WHOLE = ("width", "layers", "heads", "steps", "seed", "params", "non_embedding", "tokens", "flops")
_REAL = ("rate", "budget", "epochs", "loss", "loss_error", "seconds")
KINDS = dict.fromkeys((*_WHOLE, "exact_flops"), int) | dict.fromkeys(_REAL, float)


def read(path: Path = TABLE) -> list[dict]:
    """Return the rows of a table, with numbers as numbers; [] if the file does not exist.

    An incomplete last line, from a killed process, is left out.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        lines = [line for line in file if line.endswith("\n") and not line.startswith("#")]
    rows = []
    for row in csv.DictReader(lines):
        rows.append(
            {
                key: json.loads(value) if key == "curve" else KINDS.get(key, str)(value)
                for key, value in row.items()
            }
        )
    return rows


def append(row: dict, path: Path, made_by: str):
    """Add a row and flush it to disk; before the first row write the provenance and the heading.

    Args:
        made_by: the command that makes the table.
    """
    if path.exists():
        mend_end(path)
    there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    new = all(line.startswith("#") for line in there)  # the heading may be incomplete, too
    with path.open("w" if new else "a", newline="", encoding="utf-8") as file:
        if new:
            file.writelines(f"# {line}\n" for line in provenance(made_by))
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


def mend_end(path: Path):
    """Remove an incomplete last line."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)


def provenance(made_by: str) -> list[str]:
    """List what the numbers depend on."""
    about = pack("python", length=LENGTH).about
    return [
        f"made by: {made_by}",
        f"text: {about['name']}, {about['bytes']} bytes, sha256 {about['sha256']}",
        f"Python {platform.python_version()}, torch {torch.__version__}, {cores()} cores",
        f"sequences of {LENGTH} bytes, {BATCH} a step; loss in nats a byte, held out",
    ]
