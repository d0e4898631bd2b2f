"""Time the messages of ZeRO stage 3 and of ZeRO++ over a paced link, beside the formula."""

from dataclasses import astuple
from functools import partial

import torch
import torch.distributed as dist

from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.paced import PacedTransport
from helpers.comm.transport import GroupTransport
from helpers.parallel.zero.nodes import NodesTransport
from helpers.plans.slow_links import (
    break_even,
    node_messages,
    quantised_numbers,
    quantiser_seconds,
    speed_up,
)
from helpers.precision.blocks import Blocks
from helpers.runtime.launch import launch
from tests.bench.compare import duration, in_turn, median, ratio, timed
from tests.bench.report import Report
from tests.bench.steps import slowest

NAME = "slow_links"
NUMBERS, ROUNDS = 2**22, 15
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4)  # of the predicted break-even bandwidth
EXACT, QUANTISED = "stage 3", "ZeRO++"
INT8, INT4 = Blocks(bits=8), Blocks(bits=4)
FORMS = {"weights": astuple(INT8), "gradients": (astuple(INT4), astuple(INT4))}


def measure(quick: bool = False) -> Report:
    numbers, rounds = (2**14, 2) if quick else (NUMBERS, ROUNDS)
    speed = launch(speeds, 2, device="cpu", numbers=numbers)[0]
    plan = partial(node_messages, [numbers], 2, 1, number_bytes=4)
    messages = plan(), plan(secondary=True, **FORMS)
    quantiser = quantiser_seconds(quantised_numbers(numbers, 2, 1), speed)
    even = break_even(*messages, quantiser=quantiser)
    paces = [even * share for share in SHARES]
    options = {"numbers": numbers, "paces": paces, "rounds": rounds}
    runs = launch(steps, 2, device="cpu", timeout=None, **options)
    times = slowest(runs, runs[0])
    rows = []
    for share, pace in zip(SHARES, paces, strict=True):
        exact, quantised = times[EXACT, pace], times[QUANTISED, pace]
        gain = ratio(quantised, exact)
        formula = speed_up(*messages, {"node": pace}, quantiser=quantiser)
        row = {"share": share, "pace": pace, EXACT: median(exact), QUANTISED: median(quantised)}
        row |= {"gain": gain.median, "low": gain.low, "high": gain.high, "formula": formula}
        rows.append(row | {"even": even} | speed)
    return report(rows)


def speeds(worker, numbers: int) -> dict[str, float]:
    """Numbers a second that a rank quantises, restores and copies, while the other does too."""
    torch.set_num_threads(1)
    row, room = torch.randn(2, numbers)
    int4, int8 = INT4.encode(row), INT8.encode(row)
    blocks = row.view(-1, INT8.size)
    packed = torch.ops.quantized.embedding_bag_byte_prepack(blocks)
    calls = {
        "encode": lambda: INT4.encode(row, int4),
        "decode": lambda: INT4.decode(int4, room),
        "encode int8": lambda: INT8.encode(row, int8),
        "decode int8": lambda: INT8.decode(int8, room),
        "FBGEMM encode": lambda: torch.ops.quantized.embedding_bag_byte_prepack(blocks),
        "FBGEMM decode": lambda: torch.ops.quantized.embedding_bag_byte_unpack(packed),
        "copy": lambda: room.copy_(row),
    }
    times = in_turn({name: timed(call) for name, call in calls.items()}, 15)
    return {name: numbers / median(seconds[1:]) for name, seconds in times.items()}


def steps(worker, numbers: int, paces: list[float], rounds: int) -> dict:
    """Seconds of a step's messages in each round, by way and pace. Two nodes have a rank each."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(node=2, local=1))
    alone = GroupTransport(mesh.group("local"))
    own, every = torch.randn(numbers // 2), torch.randn(2, numbers // 2)

    def step(ways, gathers):
        for _ in range(gathers):
            ways.all_gather(every, own).wait()
        ways.reduce_scatter(own, every).wait()

    turns = {}
    for pace in paces:
        for name, forms, gathers in ((EXACT, (), 2), (QUANTISED, (INT8, (INT4, INT4)), 1)):
            link = PacedTransport(mesh.group("node"), bytes_per_second=pace)
            ways = NodesTransport(dist.group.WORLD, alone, link, *forms)
            call = partial(step, ways, gathers)
            call()  # the first call allocates
            turns[name, pace] = timed(call, before=dist.barrier)
    return in_turn(turns, rounds)


def report(rows) -> Report:
    table = [["MB/s of the link", EXACT, QUANTISED, "times faster", "formula", "off"]]
    for r in rows:
        table.append(
            [
                f"{r['pace'] / 1e6:,.0f} (1/{1 / r['share']:.0f})",
                *(duration(r[name]) for name in (EXACT, QUANTISED)),
                f"{r['gain']:.2f} ({r['low']:.2f}–{r['high']:.2f})",
                f"{r['formula']:.2f}",
                f"{r['gain'] / r['formula'] - 1:+.0%}",
            ]
        )
    first = rows[0]

    def of(what: str) -> str:
        return f"{first[what] / 1e9:.1f}"

    notes = (
        f"Two nodes of one rank, one thread each: the messages of a step with {NUMBERS / 1e6:.1f} "
        "million numbers of 4 bytes. Stage 3 gathers twice and reduces once; ZeRO++ gathers int8 "
        "once, and reduces int4 by an all-to-all. Measured first, while both ranks work: a rank "
        f"quantises {of('encode')} and restores {of('decode')} billion "
        f"numbers a second in int4, {of('encode int8')} and {of('decode int8')} in int8 (FBGEMM, "
        f"in rows of a block: {of('FBGEMM encode')} and {of('FBGEMM decode')}), and "
        f"copies {of('copy')}. So the break-even is predicted at "
        f"{first['even'] / 1e6:,.0f} MB/s; in "
        "brackets, the link's share of it. Faster links than a fourth of it cannot be paced here: "
        "gloo itself needs longer. Times of the slower rank. The ratio is the median over pairs, "
        "with a 95 % bootstrap interval; off: of the measured ratio from the formula's."
    )
    return Report(NAME, table, notes, rows)
