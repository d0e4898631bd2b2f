"""Compare with other libraries, side by side.

python -m tests.bench                   all benchmarks: tables here and in figures/, and the charts
python -m tests.bench starting          only this benchmark
python -m tests.bench --quick --dry     few repeats; writes no files
"""

import argparse
import importlib
import subprocess
import sys
import time

import torch

from tests.bench.report import FIGURES

# each a module with measure(quick) -> Report
BENCHMARKS = (
    "starting",
    "faults",
    "collectives",
    "data_parallel",
    "tensor_parallel",
    "context_parallel",
    "zero",
    "overlap",
    "pipeline",
    "scaling",
    "adam",
    "offload",
    "slow_links",
    "saving",
    "survivors",
    "decoding",
    "serving",
    "scan",
    "mamba",
    "muon",
    "experts",
    "gpu",  # by default only where there is one
)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few repeats, to test the benchmark")
    parser.add_argument("--dry", action="store_true", help="write nothing to figures/")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}")
    here = [name for name in BENCHMARKS if name != "gpu" or torch.cuda.is_available()]
    for name in options.names or here:
        began = time.monotonic()
        report = importlib.import_module(f"tests.bench.{name}").measure(quick=options.quick)
        print(f"\n{report.markdown()}\n{name} took {time.monotonic() - began:.0f} s\n", flush=True)
        if not options.dry:
            report.write()
    if not options.dry:
        subprocess.run([sys.executable, FIGURES / "draw.py"], check=True)


if __name__ == "__main__":
    main()
