"""What a call on many ranks gives back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, repr=False)
class Runs(Sequence):
    """The ranks' results, in order of rank: `runs[0]`, `len(runs)`, `for result in runs`.

    Attributes:
        results: what the function returned on each rank.
        records: what the ranks logged, a dict a row, in the order it came.
        device, backend: what it ran on: "cpu" or "cuda", "gloo" or NCCL beside it.
        seconds: from the call to the last answer.
    """

    results: list
    records: list[dict] = field(default_factory=list)
    device: str = "cpu"
    backend: str = "gloo"
    seconds: float = 0.0

    def __getitem__(self, rank):
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator:
        return iter(self.results)

    def column(self, name: str) -> list[Any]:
        """`result[name]` of every rank.

        Raises:
            KeyError: some rank did not return it; says which, and what it returned.
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
        """What `worker.log` recorded, as a DataFrame: rank, the logged values, seconds.

        Ordered by rank, then as logged; `seconds` counts from the start of the function.
        """
        import pandas as pd

        names = dict.fromkeys(name for record in self.records for name in record)
        columns = ["rank", *(n for n in names if n not in ("rank", "seconds")), "seconds"]
        rows = sorted(self.records, key=lambda record: record["rank"])  # stable
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self):
        lines = [f"{len(self)} rank{'s' * (len(self) != 1)} on {self.device} ({self.backend})"]
        lines += [f"rank {rank}: {short(result)}" for rank, result in enumerate(self.results)]
        if self.records:
            lines.append(f"{len(self.records)} logged rows: .frame()")
        return "\n".join(lines)


def short(value: Any, width: int = 100) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"
