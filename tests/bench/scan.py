"""Time the selective scan and Mamba-2's scan, forward and backward, beside plain PyTorch."""

from functools import partial

import torch

from helpers.measure.memory import memory_of
from helpers.models.scan.selective import FORMS, selective_scan
from helpers.models.scan.ssd import ssd
from tests.bench import scan_peers
from tests.bench.compare import beside, duration, in_turn, median, one_thread, timed, timed_on_gpu
from tests.bench.report import Report, goal_of, share_of

NAME = "scan"
LENGTHS = (1024, 2048)
ROUNDS = 12
SEQUENCES, CHANNELS, STATE = 2, 256, 16
HEADS, WIDTH, DUAL_STATE, CHUNK = 8, 64, 64, 64
PARALLEL, DUAL = "tree in place", "einsum"
OURS = {form: f"selective, {form}" for form in FORMS}
CHUNKS = "duality, matrix products"
KERNEL = "selective, Triton"
TIME_GOALS = {  # the maximum of our time over the peer's
    (OURS["fused"], 1024): 0.35,
    (OURS["fused"], 2048): 0.2,
    (CHUNKS, 1024): 0.9,
    (CHUNKS, 2048): 0.9,
}
PEAK_GOALS = {(OURS["fused"], length): 0.1 for length in LENGTHS}


def measure(quick: bool = False) -> Report:
    rows = []
    with one_thread():
        for length in LENGTHS:
            print(f"scan: {length} tokens", flush=True)
            length_now, rounds = (length // 16, 2) if quick else (length, ROUNDS)
            contenders = {form: partial(own, form=form) for form in FORMS}
            named = {OURS[form]: run for form, run in contenders.items()}
            selective = {PARALLEL: scan_peers.parallel, **named}
            rows += compared(length, selective, selective_inputs(length_now), rounds)
            both = {DUAL: scan_peers.dual, CHUNKS: own_dual}
            rows += compared(length, both, dual_inputs(length_now), rounds)
    return report(rows)


def on_gpu(length: int) -> list[dict]:
    """The rows of the kernel, forward only, beside the same peer on the GPU."""
    from helpers.models.scan.kernel import selective_forward

    contenders = {PARALLEL: scan_peers.parallel, KERNEL: selective_forward}
    inputs = [t.detach().cuda() for t in selective_inputs(length)]
    calls = {name: partial(run, *inputs) for name, run in contenders.items()}
    return rows_of(length, calls, lambda call: partial(timed_on_gpu, call), ROUNDS)


def own(*inputs, form):
    return selective_scan(*inputs, form=form)[0]


def own_dual(*inputs):
    return ssd(*inputs, chunk=CHUNK)[0]


def selective_inputs(length: int) -> list[torch.Tensor]:
    """x, delta, A, B and C, with steps and decays as in a new Mamba block."""
    g = torch.Generator().manual_seed(0)
    x, B, C = (
        torch.randn(SEQUENCES, length, size, generator=g) for size in (CHANNELS, STATE, STATE)
    )
    delta = torch.rand(SEQUENCES, length, CHANNELS, generator=g) * 0.1
    A = -torch.arange(1.0, STATE + 1).repeat(CHANNELS, 1)
    return [t.requires_grad_() for t in (x, delta, A, B, C)]


def dual_inputs(length: int) -> list[torch.Tensor]:
    """x, delta, A, B and C, of one group."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(SEQUENCES, length, HEADS, WIDTH, generator=g)
    delta = torch.rand(SEQUENCES, length, HEADS, generator=g) * 0.1
    B, C = (torch.randn(SEQUENCES, length, 1, DUAL_STATE, generator=g) for _ in "BC")
    return [t.requires_grad_() for t in (x, delta, -torch.arange(1.0, HEADS + 1), B, C)]


def compared(length: int, contenders: dict, inputs, rounds: int) -> list[dict]:
    """The rows of these contenders, forward and backward."""
    calls = {name: partial(forward_backward, run, inputs) for name, run in contenders.items()}
    return rows_of(length, calls, timed, rounds)


def forward_backward(run, inputs):
    torch.autograd.grad(run(*inputs).sum(), inputs)


def rows_of(length: int, calls: dict, timer, rounds: int) -> list[dict]:
    """The rows of these calls; the first is the peer of all others."""
    peaks = {name: memory_of(call, []).peak for name, call in calls.items()}
    times = in_turn({name: timer(call) for name, call in calls.items()}, rounds)
    peer = next(iter(calls))
    return [
        {
            "length": length,
            "contender": name,
            "peer": peer,
            "median": median(times[name]),
            **beside(times[name], times[peer]),
            "goal": TIME_GOALS.get((name, length), ""),
            "peak": peaks[name],
            "peak_ratio": peaks[name] / peaks[peer],
            "peak_goal": PEAK_GOALS.get((name, length), ""),
        }
        for name in calls
    ]


def report(rows) -> Report:
    table = [["tokens", "", "median", "over the peer", "goal", "peak", "over the peer", "goal"]]
    for r in rows:
        peer = r["contender"] == r["peer"]
        table.append(
            [
                str(r["length"]),
                r["contender"],
                duration(r["median"]),
                "" if peer else share_of(r),
                goal_of(r),
                f"{r['peak'] / 2**20:.0f} MiB",
                "" if peer else f"{r['peak_ratio']:.2f}",
                goal_of(r, "peak_goal"),
            ]
        )
    notes = (
        f"Forward and backward of the scan alone, float32, one thread, {SEQUENCES} sequences. "
        f"Selective: {CHANNELS} channels with {STATE} states each. Duality: {HEADS} heads of width "
        f"{WIDTH}, {DUAL_STATE} states, chunks of {CHUNK}. The peers are the usual teaching code "
        f"in plain PyTorch: '{PARALLEL}', a scan of logarithmic depth with its own backward, and "
        f"'{DUAL}', four einsums under autograd. Contenders run in turn. A ratio is the median "
        "over pairs, with a 95 % bootstrap interval. Peak: all living tensors at one time, "
        "including inputs and gradients."
    )
    return Report(NAME, table, notes, rows)
