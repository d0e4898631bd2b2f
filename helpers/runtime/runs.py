"""The results of a call on many ranks, and the rows that the ranks logged meanwhile."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.runtime.plain import as_json, read_json, write_json
from helpers.runtime.screen import say

ROWS_KEPT = 1_000_000  # of a call, over all ranks
CHARACTERS_KEPT = 100_000_000  # of the words in these rows


@dataclass(frozen=True, repr=False)
class Runs(Sequence):
    """The ranks' results, in order of rank: `runs[0]`, `len(runs)`, `for result in runs`.

    Attributes:
        results: the function's result on each rank.
        records: the rows that the ranks logged, as dicts, in the order of arrival.
        device, backend: "cpu" or "cuda"; "gloo", or gloo and NCCL.
        seconds: from the call to the last answer.
    """

    results: list
    records: list[dict] = field(default_factory=list)
    device: str = "cpu"
    backend: str = "gloo"
    seconds: float = 0.0

    def __getitem__(self, rank):
        try:
            return self.results[rank]
        except IndexError:
            raise IndexError(f"no rank {rank}: there are ranks 0 to {len(self) - 1}") from None

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator:
        return iter(self.results)

    def column(self, name: str) -> list[Any]:
        """Return `result[name]` of every rank.

        Raises:
            KeyError: a rank did not return it; names the rank, and its keys.
        """
        for rank, result in enumerate(self.results):
            if not isinstance(result, dict):
                raise KeyError(f"rank {rank} returned a {type(result).__name__}, not a dict")
            if name not in result:
                raise KeyError(
                    f"rank {rank} returned no {name!r}; it has {sorted(result, key=str)}"
                )
        return [result[name] for result in self.results]

    def frame(self):
        """Return the rows of `worker.log` as a DataFrame: rank, the logged values, seconds.

        The rows are in order of rank, then as logged; `seconds` counts from the function's start.
        """
        import pandas as pd

        names = dict.fromkeys(name for record in self.records for name in record)
        columns = ["rank", *(n for n in names if n not in ("rank", "seconds")), "seconds"]
        rows = sorted(self.records, key=lambda record: record["rank"])  # stable
        return pd.DataFrame(rows, columns=columns)

    def save(self, path: str | os.PathLike):
        """Write everything to one file, as JSON; `load_runs` reads it back.

        Tensors and arrays become nested lists, and tuples become lists.

        Raises:
            TypeError: a result has no form in JSON, or is too large; names it.
        """
        results = [as_json(result, f"runs[{r}]") for r, result in enumerate(self.results)]
        about = {"device": self.device, "backend": self.backend, "seconds": self.seconds}
        records = as_json(self.records, "runs.records")
        write_json(path, {"runs": 1, **about, "results": results, "records": records})

    def __repr__(self):
        lines = [f"{len(self)} rank{'s' * (len(self) != 1)} on {self.device} ({self.backend})"]
        lines += [f"rank {rank}: {short(result)}" for rank, result in enumerate(self.results)]
        if self.records:
            lines.append(f"{len(self.records)} logged rows: .frame()")
        return "\n".join(lines)


def short(value: Any, width: int = 100) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def load_runs(path: str | os.PathLike) -> Runs:
    """Read the file of `Runs.save`, or the folder of a job's results. Reads only JSON.

    Raises:
        FileNotFoundError: no such file, or some ranks of the job have not written (yet).
        ValueError: the file is something else; or the files belong to different attempts.
    """
    if os.path.isdir(path):
        return load_folder(path)
    saved = checked(path, {"runs": int, "results": list, "records": list, **ABOUT})
    about = {name: saved[name] for name in ABOUT}
    return Runs(saved["results"], saved["records"], **about)


ABOUT = {"device": str, "backend": str, "seconds": float}


def rank_file(folder: str | os.PathLike, rank: int) -> str:
    return os.path.join(folder, f"rank-{rank:05d}.json")


def save_rank(folder: str | os.PathLike, runs: Runs, rank: int, attempt: str):
    """Add one rank's result to the folder; the result must be JSON already."""
    about = {"device": runs.device, "backend": runs.backend, "seconds": runs.seconds}
    place = {"rank": rank, "world_size": len(runs), "attempt": attempt}
    records = as_json([r for r in runs.records if r["rank"] == rank], "runs.records")
    write_json(
        rank_file(folder, rank), {**place, **about, "result": runs[rank], "records": records}
    )


def load_folder(folder: str | os.PathLike) -> Runs:
    first = load_rank(folder, 0, None)
    ranks = [first, *(load_rank(folder, r, first) for r in range(1, first["world_size"]))]
    records = [record for rank in ranks for record in rank["records"]]
    records.sort(key=lambda record: record["seconds"])
    about = {name: first[name] for name in ABOUT}
    return Runs([rank["result"] for rank in ranks], records, **about)


def load_rank(folder, rank: int, first: dict | None) -> dict:
    form = {"world_size": int, "attempt": str, "records": list, **ABOUT}
    try:
        saved = checked(rank_file(folder, rank), form)
    except FileNotFoundError:
        total = f" of {first['world_size']}" if first else ""
        raise FileNotFoundError(
            f"rank {rank}{total} has left no result in {folder}: has the job ended well?"
        ) from None
    if first and saved["attempt"] != first["attempt"]:
        raise ValueError(
            f"the results of ranks 0 and {rank} in {folder} are of different attempts: "
            "save the job again, and run it again"
        )
    return saved


def checked(path, form: dict[str, type]) -> dict:
    saved = read_json(path)
    for name, kind in form.items():
        if not isinstance(saved.get(name), kind):
            raise ValueError(f"{path} holds no results: its {name!r} is no {kind.__name__}")
    return saved


class Rows:
    """The first rows of a call; the later rows are only counted, because memory is limited.

    Attributes:
        kept: the rows as dicts, in the order of arrival.
        left_out: the number of rows that were not kept.
    """

    def __init__(self):
        self.kept: list[dict] = []
        self.left_out = 0
        self.characters = 0

    def add(self, row: dict) -> bool:
        """Keep the row; return False if there is no room for it."""
        words = sum(len(value) for value in row.values() if isinstance(value, str))
        full = len(self.kept) >= ROWS_KEPT or self.characters + words > CHARACTERS_KEPT
        if self.left_out or full:  # after the first missing row, no other row is kept
            self.left_out += 1
            return False
        self.characters += words
        self.kept.append(row)
        return True

    def finish(self):
        """Print how many rows are missing."""
        if self.left_out:
            say(
                f"worker.log: the last {self.left_out:,} rows are left out. A call keeps "
                f"{ROWS_KEPT:,} rows, with {CHARACTERS_KEPT:,} characters of text. "
                "Log every tenth step, or write to a file."
            )
