"""Exercise of week 4: the gradients that are partial sums under sequence parallelism."""

import torch

from helpers.check import hidden
from helpers.check.oracle import HANG_HINT, NotRight, examine
from helpers.check.verdict import Verdict
from helpers.check.watch import Watch
from helpers.check.week04.kinds import RIGHT, ROUNDED, kind_of
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import Batch, random_batch
from helpers.models.gpt import GPT, GPTConfig, build
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.state.slicing import fill, take

RANKS = (2, 3)
CONFIG = GPTConfig(
    vocab=36, context=12, width=24, layers=1, heads=12, norm="layer", positions="learned",
    mlp="gelu", bias=True,
)  # fmt: skip
FROZEN = "blocks.0.mlp_norm.bias"
PARTIAL = "this rank's part of the sum"
NO_MESSAGE = (
    "No message was sent. A norm saw this rank's T/N tokens only: what does its gradient lack?"
)


def sum_partial_gradients(fn) -> Verdict:
    """Check `fn(worker, model, cut)`: afterwards, gradients are those of one process."""
    cases = [(ranks, {}) for ranks in RANKS]
    exercise = "sum_partial_gradients"
    return examine(exercise, fn, cases, run_sums, judge_sums, hint_failure, patience=4)


def backward(model: GPT, batch: Batch):
    """Fill `.grad`, all but the frozen parameter's."""
    dict(model.named_parameters())[FROZEN].requires_grad_(False)
    loss, _ = model.loss(batch)
    loss.backward()


def inputs() -> tuple[Batch, GPT]:
    """The batch and the model of one process: equal on every rank."""
    batch = random_batch(hidden.seed(2), 2, CONFIG.context, CONFIG.vocab, ignored=0.2)
    return batch, build(CONFIG, seed=hidden.seed(1), dtype=torch.float64)


def run_sums(worker, solve):
    torch.set_num_threads(1)
    n = worker.world_size
    batch, twin = inputs()
    backward(twin, batch)
    whole = {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}
    mesh = make_mesh(Layout(tp=n))
    model, parts = sequence_parallel(CONFIG, 1, mesh, torch.float64)
    model.to_empty(device="cpu")
    values = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        fill(parts[name], parameter, values[name])
    backward(model, batch)
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    cut = {name for name, part in parts.items() if part.cuts}
    before = {name: p.grad.clone() for name, p in model.named_parameters() if name in names}
    watch = Watch()
    with watch:
        solve(worker, model, set(cut))
    after, kinds = dict(model.named_parameters()), {}
    for name in names:
        right = take(parts[name], whole[name])
        kinds[name] = kind_of(after[name].grad, {
            RIGHT: right,
            PARTIAL: before[name],
            "the right one, divided by N": right / n,
            "N times the right one": n * right,
            "this rank's part, divided by N": before[name] / n,
        })  # fmt: skip
    return {
        "kinds": kinds,
        "cut": cut,
        "unwaited": watch.unwaited(),
        "sent": sum(event.nbytes for event in watch.events if event.kind == "message"),
        "due": sum(before[name].nbytes for name in names if name not in cut),
    }


def judge_sums(runs):
    for rank, run in enumerate(runs):
        if run["unwaited"]:
            raise NotRight(
                f"rank {rank} returned before an all-reduce was over",
                "An all-reduce with async_op=True only starts. When may you read its result?",
            )
        wrong = {name: kind for name, kind in run["kinds"].items() if kind != RIGHT}
        if wrong:
            listing = "\n".join(
                f"  {name}{' (cut)' * (name in run['cut'])}: {kind}" for name, kind in wrong.items()
            )
            raise NotRight(
                f"afterwards, some gradients of rank {rank} are not right\n{listing}",
                hint_sums(wrong, run),
            )
        if run["sent"] > run["due"]:
            raise NotRight(
                f"the right gradients, but rank {rank} sent {run['sent']:,} bytes; the partial "
                f"sums have {run['due']:,}",
                "Which gradients were complete already, or travelled twice?",
            )


def hint_sums(wrong, run) -> str:
    """The hint, from the names and kinds of the wrong gradients."""
    kinds, cut = set(wrong.values()), run["cut"]
    if not run["sent"] and PARTIAL in kinds:
        return NO_MESSAGE
    if cut & set(wrong):
        return (
            "A cut parameter belongs to one rank, and its gradient was complete: the layer gathers "
            "all tokens before it multiplies. Which parameters does every rank have?"
        )
    if kinds & {"the right one, divided by N", "this rank's part, divided by N"}:
        return (
            "Divided by N. The ranks saw different tokens of one sum. Does one process take the "
            "mean over groups of its tokens?"
        )
    if kinds == {"N times the right one"}:
        return "Summed once more after the sum was there. Which message is one too many?"
    if kinds == {PARTIAL}:
        return left_out(list(wrong))
    if ROUNDED in kinds:
        return "The gradients are in float64. Which line makes a tensor of another dtype?"
    return "Add up `.grad` over the ranks, in place. Which number has changed besides?"


def left_out(names: list[str]) -> str:
    """The hint for partial sums that were not sent."""
    if any("norm" in name for name in names):
        return (
            "The gradients of norms are not summed. A norm saw this rank's T/N tokens only, and "
            "every rank has the same norm."
        )
    if any(name.endswith(".bias") for name in names):
        return (
            "A bias is missing. The bias of a row-parallel layer is added after the "
            "reduce-scatter: to how many tokens?"
        )
    return "Some parameters are neither norms nor biases. Which tokens used them on this rank?"


def hint_failure(finding: str) -> str:
    if "NoneType" in finding:
        return "A frozen parameter has no gradient: its `.grad` is None on every rank."
    if "no sign of life" in finding or "SIGABRT" in finding:
        return HANG_HINT
    return ""
