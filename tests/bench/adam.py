"""Time AdamW's update: PyTorch's three forms, and ours as one loop. (`gpu` has our Triton kernel.)

A whole run has DeepSpeedCPUAdam beside them, the update of ZeRO-Offload. Its first use compiles it,
in about a minute.
"""

import os

import torch

from helpers.measure.moved import moved_by
from helpers.measure.peak import copy_rate, matmul_rate
from helpers.parallel.libraries.deepspeed_extension import cpu_adam
from helpers.precision.fused_adam.loop import BYTES, FLOPS, compiled_loop
from tests.bench.compare import beside, duration, in_turn, median, one_thread, timed, timed_on_gpu
from tests.bench.report import Report, share_of

NAME = "adam"
NUMBERS = 2**23  # 32 MiB for each of the four tensors: more than most caches
ROUNDS = 24
PEER = "fused"
FORMS = {  # of torch.optim.AdamW
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    PEER: {"fused": True},
}
OURS = "ours, one loop in C"
TRITON = "ours, Triton"
DEEPSPEED = "DeepSpeedCPUAdam"
YARDSTICK = "addition in place"
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01


def measure(quick: bool = False) -> Report:
    with one_thread():
        return report(on_cpu(*((NUMBERS // 64, 2) if quick else (NUMBERS, ROUNDS, deepspeed_step))))


def on_cpu(numbers: int, rounds: int, another=None) -> list[dict]:
    """The rows of one tensor, on one thread; with another contender, a function of `numbers`."""
    calls = {name: step_of([numbers], "cpu", **form) for name, form in FORMS.items()}
    calls[OURS] = our_loop(numbers)
    if another is not None:
        calls[DEEPSPEED] = another(numbers)
    for call in calls.values():
        call()  # the first call compiles, and makes the state
    bytes_each = {name: moved_by(calls[name]).total / numbers for name in FORMS}
    bytes_each |= {OURS: BYTES, DEEPSPEED: BYTES}
    source, target = torch.ones(2, numbers)
    calls[YARDSTICK] = lambda: target.add_(source)
    times = in_turn({name: timed(call) for name, call in calls.items()}, rounds)
    # 12 bytes: two numbers are read, and one is written. (A copy would read its target, uncounted.)
    bandwidth = 12 * numbers / median(times.pop(YARDSTICK))
    limits = {"peak": matmul_rate(1024), "bandwidth": bandwidth}
    return rows_of(times, bytes_each, limits, "CPU, one thread", 1, numbers)


def on_gpu(numbers: int, tensors: int, rounds: int) -> list[dict]:
    """The rows of that many numbers, in that many tensors of one size."""
    from helpers.precision.fused_adam.optimizer import FusedAdamW

    sizes = [numbers // tensors] * tensors
    times = {name: [] for name in (*FORMS, TRITON)}
    # One contender at a time: four would need 64 bytes for each parameter.
    for name in times:
        form = FORMS.get(name)
        call = step_of(sizes, "cuda", **(form or {"cls": FusedAdamW}))
        call()
        times[name] = [timed_on_gpu(call) for _ in range(rounds)]
        del call
        torch.cuda.empty_cache()
    bytes_each = dict.fromkeys(times)  # the CPU's rows count them
    bytes_each |= {PEER: BYTES, TRITON: BYTES}
    limits = {"peak": matmul_rate(8192, device="cuda"), "bandwidth": copy_rate(2**30, "cuda")}
    return rows_of(times, bytes_each, limits, torch.cuda.get_device_name(), tensors, numbers)


def step_of(sizes, device, cls=torch.optim.AdamW, **form):
    """A step of the optimizer on parameters of these sizes, with gradients."""
    generator = torch.Generator(device).manual_seed(0)
    parameters = []
    for size in sizes:
        p = torch.nn.Parameter(torch.randn(size, device=device, generator=generator))
        p.grad = torch.randn(size, device=device, generator=generator)
        parameters.append(p)
    return cls(parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **form).step


def deepspeed_step(numbers: int):
    """A step of DeepSpeedCPUAdam, proved equal to PyTorch's.

    Raises:
        RuntimeError: DeepSpeed or a C++ compiler is missing.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # its OpenMP is not PyTorch's, and reads this when loaded
    theirs = cpu_adam()
    steps = [
        step_of([1000], "cpu", cls=cls, **form)
        for cls, form in ((theirs, {}), (torch.optim.AdamW, FORMS[PEER]))
    ]
    for _ in range(3):
        for step in steps:
            step()
    after = [step.__self__.param_groups[0]["params"][0].detach() for step in steps]
    torch.testing.assert_close(*after, rtol=1e-5, atol=1e-6)
    return step_of([numbers], "cpu", cls=theirs)


def our_loop(numbers: int):
    """A step of the loop in C."""
    generator = torch.Generator().manual_seed(0)
    p, g = (torch.randn(numbers, generator=generator) for _ in range(2))
    m, v, steps = torch.zeros(numbers), torch.zeros(numbers), iter(range(1, 10**9))
    update = compiled_loop()

    def step():
        update(p, g, m, v, next(steps), LR, BETAS, EPS, DECAY)
        return p

    return step


def rows_of(times, bytes_each, limits, device, tensors, numbers) -> list[dict]:
    rows = []
    for name, samples in times.items():
        seconds, moved = median(samples), bytes_each[name]
        rows.append(
            {
                "device": device,
                "tensors": tensors,
                "numbers": numbers,
                "contender": name,
                "median": seconds,
                **beside(samples, times[PEER]),
                "bytes": moved or "",  # of one parameter
                # of the bandwidth: as counted, and if each number moved only once
                "busy": moved * numbers / seconds / limits["bandwidth"] if moved else "",
                "useful": BYTES * numbers / seconds / limits["bandwidth"],
                "intensity": FLOPS / moved if moved else "",
                "flops": FLOPS * numbers / seconds,
                **limits,
            }
        )
    return rows


def report(rows) -> Report:
    table = [["", "", "median", f"over {PEER}", "bytes a parameter", "bandwidth", "useful"]]
    for r in rows:
        table.append(
            [
                f"{r['device']}, {r['tensors']} tensor{'s' * (r['tensors'] > 1)}",
                r["contender"],
                duration(r["median"]),
                "" if r["contender"] == PEER else share_of(r),
                f"{r['bytes']:.0f}" if r["bytes"] else "",
                f"{r['busy']:.0%}" if r["bytes"] else "",
                f"{r['useful']:.0%}",
            ]
        )  # fmt: skip
    reached = rows[0]["bandwidth"] / 1e9
    notes = (
        f"AdamW in float32, {rows[0]['numbers'] / 1e6:.1f} million parameters on the CPU. The "
        "first three are the forms of torch.optim.AdamW; ours is the same rule as one loop in C. "
        "DeepSpeedCPUAdam is DeepSpeed's update on "
        "the host. Contenders run in turn. A ratio "
        "is the median over pairs, with a 95 % bootstrap interval. Bytes a parameter: counted for "
        "each operator, as if nothing stayed in a cache. Bandwidth: these bytes over the time, as "
        f"a share of the bytes/s of an addition in place on one thread (here {reached:.1f} GB/s). "
        f"Useful: the same with {BYTES} bytes a parameter, which "
        "every contender has to move."
    )
    return Report(NAME, table, notes, rows)
