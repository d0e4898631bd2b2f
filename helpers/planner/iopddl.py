"""Solve an instance of the contest on intra-operator parallelism of ASPLOS and EuroSys 2025.

    python -m helpers.planner.iopddl FILE [--seconds 110]

FILE is JSON, also compressed by gzip. The program prints `cost COST peak PEAK limit LIMIT bound
BOUND`, and on the next line the strategy of each node as JSON. The cost is optimal where it equals
the bound. It returns 0; 1 if no choice keeps the limit; 3 if the time was too short to find one.

Source: github.com/asplos-contest/2025, IOPDDL.md.
"""

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

from helpers.planner.problem import NoPlan, Problem
from helpers.planner.solve import solve

SECONDS = 110.0  # the contest allows one to five minutes


def read(path: str | Path) -> Problem:
    """Read a problem from a file.

    Raises:
        ValueError: this is no such file.
    """
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    try:
        told = json.loads(data)
        told = told.get("problem", told)
        nodes, edges = told["nodes"], told.get("edges") or {"nodes": [], "costs": []}
        return Problem(
            costs=nodes["costs"],
            edges=list(zip(map(tuple, edges["nodes"]), edges["costs"], strict=True)),
            usages=nodes.get("usages") or (),
            intervals=nodes.get("intervals") or (),
            limit=told.get("usage_limit"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no problem of the contest: {error!r}") from error


def main(arguments: list[str] | None = None) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m helpers.planner.iopddl")
    parser.add_argument("file", help="the problem, as .json or .json.gz")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to stop after")
    options = parser.parse_args(arguments)
    try:
        problem = read(options.file)
        found = solve(problem, options.seconds - (time.monotonic() - began))
    except NoPlan as error:
        print(f"infeasible: {error}", file=sys.stderr)
        return 1
    except TimeoutError as error:
        print(error, file=sys.stderr)
        return 3
    except (OSError, ValueError) as error:
        parser.error(str(error))
    limit = "inf" if problem.limit is None else problem.limit
    print(f"cost {found.cost} peak {found.peak} limit {limit} bound {found.bound}")
    print(json.dumps(found.chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
