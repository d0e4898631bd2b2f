"""When real clusters failed.

`servers()` reads infinitehbd.csv: 584 faults of 400 GPU servers in 348 days from 30 March 2024, of
Shou et al. 2025, "InfiniteHBD" (arXiv:2502.03885), repository stepfun-ai/InfiniteHBD-Trace, licence
Apache 2.0. A row is a fault: days from the first event, the server, what failed.

`LLAMA_3` has the unexpected interruptions of Llama 3's training on 16,384 H100s (arXiv:2407.21783,
section 3.3.4, table 5).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TRACE = Path(__file__).with_name("infinitehbd.csv")
SERVERS, DAYS = 400, 348.9798  # of the trace; 231 of the servers failed at least once
LLAMA_3_DAYS, LLAMA_3_GPUS = 54, 16_384
LLAMA_3 = {
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance, unplanned": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "NIC": 7,
    "NCCL watchdog timeouts": 7,
    "silent data corruption": 6,
    "GPU thermal interface and sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
}


@dataclass(frozen=True)
class Fault:
    """A server is out of use from `start` to `end`, in days."""

    start: float
    end: float
    server: int
    what: str = ""


def servers() -> list[Fault]:
    """Read the trace of 400 servers, in the order of time. Servers 231 to 399 never failed."""
    with TRACE.open(encoding="utf-8", newline="") as file:
        rows = [
            Fault(float(r["start_days"]), float(r["end_days"]), int(r["server"]), r["class"])
            for r in csv.DictReader(file)
        ]
    return sorted(rows, key=lambda fault: (fault.start, fault.server))


def poisson(between: float, until: float, seed: int) -> list[float]:
    """Draw the times of faults that come at random: exponential gaps of mean `between`."""
    random, times, now = np.random.default_rng(seed), [], 0.0
    while (now := now + random.exponential(between)) < until:
        times.append(float(now))
    return times


def variation(times: list[float]) -> float:
    """Return the coefficient of variation of the gaps between sorted times: 1 if at random."""
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean())
