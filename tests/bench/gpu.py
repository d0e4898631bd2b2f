"""Measure on one GPU: AdamW's kernel, the scan's kernel, decoding, and what a call costs."""

from functools import partial

import torch

from helpers.inference.decoder.fused import Fused
from helpers.models.gpt import kept_by
from helpers.precision.fused_adam.optimizer import FusedAdamW
from helpers.runtime.cluster import Cluster
from helpers.runtime.launch import launch
from tests.bench import adam, decoding, scan
from tests.bench.compare import beside, duration, in_turn, median, timed
from tests.bench.report import Report, share_of

NAME = "gpu"
NUMBERS = 10**9  # parameters, or fewer, if they do not fit:
BYTES = 28  # for each number: 16, and at most two more inside PyTorch's loop, and a margin
TENSORS = (1, 10, 100)
SMALL = [100_000] * 150  # a model of few numbers in many tensors: the host's time decides
STEPS, ROUNDS = 20, 12
BATCHES, NEW_TOKENS = (1, 32), 64
CALLS = 6


def measure(quick: bool = False) -> Report:
    torch.ones(1, device="cuda")
    numbers = 10**6 if quick else min(NUMBERS, torch.cuda.mem_get_info()[0] // BYTES)
    rounds = 2 if quick else ROUNDS
    rows = []
    for tensors in TENSORS:
        work = f"AdamW, {tensors} tensor{'s' * (tensors > 1)}"
        rows += named(work, adam.on_gpu(numbers, tensors, 2 * rounds))
    rows += small_tensors(SMALL[:3] if quick else SMALL, rounds)
    for length in scan.LENGTHS:
        rows += named(f"scan, {length} tokens", scan.on_gpu(length // 16 if quick else length))
    for sequences in BATCHES:
        rows += decodings("cuda", sequences, 8 if quick else NEW_TOKENS, rounds)
    for device in ("cpu", "cuda"):
        rows += calls(device, 2 if quick else CALLS)
    return report(rows, numbers)


def named(work: str, rows: list[dict]) -> list[dict]:
    columns = ("contender", "median", "ratio", "low", "high")
    return [
        {"work": work, **{name: row[name] for name in columns}, "useful": row.get("useful", "")}
        for row in rows
    ]


def compared(work: str, calls: dict, rounds: int) -> list[dict]:
    """Rows of these calls in turn; the first is the peer of all others."""
    for call in calls.values():
        call()
    times = in_turn({name: timed(call) for name, call in calls.items()}, rounds)
    peer = times[next(iter(calls))]
    found = [
        {"contender": name, "median": median(own), **beside(own, peer)}
        for name, own in times.items()
    ]
    return named(work, found)


def small_tensors(sizes: list[int], rounds: int, device: str = "cuda") -> list[dict]:
    """Some steps in a row, until the GPU has done them; the rows have the time of one."""

    def steps(step):
        for _ in range(STEPS):
            step()
        if device == "cuda":
            torch.cuda.synchronize()

    forms = {adam.PEER: {"fused": True}, "foreach": {"foreach": True}}
    forms[adam.TRITON] = {"cls": FusedAdamW}
    made = {name: adam.step_of(sizes, device, **form) for name, form in forms.items()}
    rows = compared(
        f"AdamW, {len(sizes)} tensors of {sizes[0]:,} numbers",
        {name: partial(steps, step) for name, step in made.items()},
        rounds,
    )
    return [row | {"median": row["median"] / STEPS} for row in rows]


def decodings(device: str, sequences: int, new_tokens: int, rounds: int) -> list[dict]:
    """Greedy tokens of the Llama of `decoding`: all contenders write the same ones.

    Raises:
        AssertionError: they do not, so their times do not compare.
    """
    from transformers import StaticCache

    model = decoding.varied(decoding.LLAMA)
    theirs = decoding.transformers_model(model).to(device)
    ours = Fused(model.to(device))
    generator = torch.Generator().manual_seed(sequences)
    prompts = torch.randint(model.config.vocab, (sequences, decoding.PROMPT), generator=generator)
    prompts = prompts.to(device)
    static = StaticCache(config=theirs.config, max_cache_len=decoding.PROMPT + new_tokens)
    calls = {
        "transformers, static cache": partial(
            decoding.decode_theirs, theirs, prompts, new_tokens, static
        ),
        "transformers, dynamic cache": partial(decoding.decode_theirs, theirs, prompts, new_tokens),
        decoding.OPERATORS: partial(
            decoding.decode_ours, ours, kept_by(model), prompts, new_tokens
        ),
    }
    first, *others = (call() for call in calls.values())
    assert all(tokens == first for tokens in others)
    return compared(f"decoding, batch {sequences}, {new_tokens} tokens", calls, rounds)


def step_of_adamw(worker) -> float:
    model = torch.nn.Linear(64, 64, device=worker.device)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8, 64, device=worker.device)).square().mean().backward()
    optimizer.step()
    return model.weight.sum().item()


def calls(device: str, times: int) -> list[dict]:
    """A later call on one rank: a fresh one, and one that lives on."""
    fresh = partial(launch, step_of_adamw, 1, device=device)
    with Cluster(1, device=device) as cluster:
        both = {"launch": fresh, "Cluster": partial(cluster.run, step_of_adamw)}
        return compared(f"a call on one rank, {device}", both, times)


def report(rows: list[dict], numbers: int) -> Report:
    table = [["", "", "median", "over the first", "of the bandwidth"]]
    for number, r in enumerate(rows):
        first = number == 0 or rows[number - 1]["work"] != r["work"]
        table.append(
            [
                r["work"] if first else "",
                r["contender"],
                duration(r["median"]) if r["median"] >= 1e-3 else f"{r['median'] * 1e6:.0f} µs",
                "" if first else share_of(r),
                f"{r['useful']:.0%}" if r["useful"] else "",
            ]
        )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    notes = (
        f"On one {gpu}. AdamW in float32, {numbers / 1e6:,.0f} million parameters; the bandwidth "
        f"is that of a large copy, for {adam.BYTES} bytes a parameter. Scan: the selective scan's "
        "forward, beside the usual teaching code in PyTorch. Decoding: a Llama of 8 layers and "
        "width 256, in float32, equal tokens. A call: a step of AdamW on one rank that is fresh "
        "(`launch`) or lives on (`Cluster`), after the first call. A ratio is the median over "
        "pairs, with a 95 % bootstrap interval."
    )
    return Report(NAME, table, notes, rows)
