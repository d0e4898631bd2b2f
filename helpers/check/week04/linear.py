"""Exercises of week 4: column- and row-parallel linear layers, each with its backward.

B  sequences        T  tokens        D  width        F  inner width, cut over N ranks
"""

from functools import partial

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.oracle import HANG_HINT, NotRight, examine
from helpers.check.verdict import Verdict
from helpers.check.watch import Watch
from helpers.check.week04.kinds import RIGHT, kind_of
from helpers.check.week04.linear_hints import hint_message, hint_value

CASES = ((2, 5), (3, 5), (4, 12))  # ranks, D
B, T, F = 2, 3, 12  # N divides F; where D = F, a transposed weight has the right shape
NAMES = ("of_x", "of_weight", "of_bias")
SHAPES = "mat1 and mat2", "size of tensor", "shapes cannot be multiplied", "expanded size"


def column_linear(fn) -> Verdict:
    """Check `fn(worker, x, weight, bias) -> y, backward`, with the outputs cut over the ranks."""
    return check("column_linear", fn, column)


def row_linear(fn) -> Verdict:
    """Check `fn(worker, x, weight, bias) -> y, backward`, with the inputs cut over the ranks."""
    return check("row_linear", fn, row)


def check(exercise: str, fn, layer) -> Verdict:
    cases = [(ranks, {"width": width}) for ranks, width in CASES]
    run, judge = partial(run_linear, layer=layer), partial(judge_linear, exercise=exercise)
    return examine(exercise, fn, cases, run, judge, partial(hint_failure, exercise=exercise))


def numbers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hidden.seed(seed))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def column(rank: int, n: int, width: int):
    """What column_linear gets, what its backward gets, and candidates for each answer."""
    x, weight, bias = numbers(B, T, width, seed=1), numbers(F, width, seed=2), numbers(F, seed=3)
    of_y = numbers(B, T, F, seed=4)
    groups = torch.arange(F).view(n, -1)
    mine = groups[rank]
    products, of_weight = x @ weight.t(), of_y.flatten(0, 1).t() @ x.flatten(0, 1)
    whole, of_bias = products + bias, of_y.sum((0, 1))
    parts = torch.stack([of_y[..., g] @ weight[g] for g in groups])  # (N, B, T, D)
    of_x, mixed = parts.sum(0), sum(of_y[..., g] for g in groups)
    y = {
        RIGHT: whole[..., mine],
        "without the bias": products[..., mine],
        "N times the products": n * products[..., mine] + bias[mine],
        "N times the right one": n * whole[..., mine],
        "the sum of all ranks' outputs": sum(whole[..., g] for g in groups),
        "all outputs": whole,
        "every N-th output": whole[..., rank::n],
        **{f"the outputs of rank {r}": whole[..., g] for r, g in enumerate(groups)},
        **{f"with rank {r}'s bias": products[..., mine] + bias[g] for r, g in enumerate(groups)},
    }
    if width == F:
        y["with W instead of its transpose"] = (x @ weight + bias)[..., mine]
    of = {
        "of_x": {
            RIGHT: of_x,
            "this rank's part of the sum": parts[rank],
            "this rank's part, divided by N": parts[rank] / n,
            "the mean over the ranks": of_x / n,
            "N times the right one": n * of_x,
            "from summed gradients of y": mixed @ weight[mine],
            "from summed gradients of y, summed": sum(mixed @ weight[g] for g in groups),
        },
        "of_weight": cut_candidates(of_weight, groups, rank, 0),
        "of_bias": cut_candidates(of_bias, groups, rank, 0)
        | {"the mean over the tokens": of_bias[mine] / (B * T)},
    }
    return (x, weight, bias), of_y[..., mine], {"y": y, **of}, {"forward": 0, "backward": width}


def row(rank: int, n: int, width: int):
    """What row_linear gets, what its backward gets, and candidates for each answer."""
    x, weight, bias = numbers(B, T, F, seed=1), numbers(width, F, seed=2), numbers(width, seed=3)
    of_y = numbers(B, T, width, seed=4)
    groups = torch.arange(F).view(n, -1)
    mine = groups[rank]
    parts = torch.stack([x[..., g] @ weight[:, g].t() for g in groups])  # (N, B, T, D)
    total = parts.sum(0)
    of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
    of_bias = of_y.sum((0, 1))
    y = {
        RIGHT: total + bias,
        "the sum, and N times the bias": total + n * bias,
        "the sum, without the bias": total,
        "this rank's part of the sum, and the bias": parts[rank] + bias,
        "this rank's part of the sum": parts[rank],
        "the mean over the ranks, and the bias": total / n + bias,
        "the mean over the ranks": total / n,
        "the right one, divided by N": (total + bias) / n,
        **{
            f"with rank {r}'s columns of W on each rank": bias
            + sum(x[..., g] @ weight[:, columns].t() for g in groups)
            for r, columns in enumerate(groups)
        },
    }
    if width == F:
        turned = sum(x[..., g] @ weight[g] for g in groups)
        y["with W instead of its transpose"] = turned + bias
    of = {
        "of_x": cut_candidates(of_y @ weight, groups, rank, -1),
        "of_weight": cut_candidates(of_weight, groups, rank, 1),
        "of_bias": {
            RIGHT: of_bias,
            "N times the right one": n * of_bias,
            "the right one, divided by N": of_bias / n,
            "the mean over the tokens": of_bias / (B * T),
        },
    }
    given = (x[..., mine].contiguous(), weight, bias)
    return given, of_y, {"y": y, **of}, {"forward": width, "backward": 0}


def cut_candidates(whole, groups, rank: int, dim: int) -> dict[str, torch.Tensor]:
    """Candidates for a gradient of which each rank has its own group along `dim`."""
    n, every = len(groups), [whole.index_select(dim, group) for group in groups]
    return {
        RIGHT: every[rank],
        "N times the right one": n * every[rank],
        "the right one, divided by N": every[rank] / n,
        "the sum over the ranks": sum(every),
        "the mean over the ranks": sum(every) / n,
        "the whole gradient": whole,
        **({"transposed": every[rank].t()} if whole.ndim == 2 else {}),
        **{f"the gradient of rank {r}": each for r, each in enumerate(every)},
    }


def run_linear(worker, solve, layer, width):
    torch.set_num_threads(1)
    given, of_y, candidates, due = layer(worker.rank, worker.world_size, width)
    kept = [tensor.clone() for tensor in (*given, of_y)]
    watch = Watch()
    with watch:
        answer = solve(worker, *given)
    report = {"unwaited": {"forward": watch.unwaited()}, "messages": {"forward": messages(watch)}}
    report["due"] = {phase: B * T * size * of_y.element_size() for phase, size in due.items()}
    if isinstance(answer, tuple | list) and len(answer) == 2 and callable(answer[1]):
        report["y"] = kind_of(answer[0], candidates["y"])
    else:
        report["returned"] = f"{shown(answer)}, not y and backward"
    if not right_everywhere(report.get("y")):
        return report
    backward = answer[1]
    watch = Watch()
    with watch:
        gradients = backward(of_y)
    if not isinstance(gradients, tuple | list) or len(gradients) != 3:
        return {"returned": f"{shown(gradients)} from backward, not three gradients"}
    for name, gradient in zip(NAMES, gradients, strict=True):
        report[name] = kind_of(gradient, candidates[name])
    report["unwaited"]["backward"] = watch.unwaited()
    report["messages"]["backward"] = messages(watch)
    now = zip(("x", "weight", "bias", "of_y"), (*given, of_y), kept, strict=True)
    report["changed"] = [name for name, tensor, before in now if not tensor.equal(before)]
    return report


def messages(watch: Watch) -> list[tuple[str, int]]:
    """Calls and payloads in bytes."""
    return [(event.name, event.nbytes) for event in watch.events if event.kind == "message"]


def right_everywhere(kind: str | None) -> bool:
    """Whether the value is right on all ranks. Else no rank goes on, and none waits for another."""
    wrong = torch.tensor([int(kind != RIGHT)])
    dist.all_reduce(wrong)
    return not wrong


def shown(answer) -> str:
    if isinstance(answer, torch.Tensor):
        return f"a tensor {tuple(answer.shape)}"
    if isinstance(answer, tuple | list):
        return f"{len(answer)} values"
    return repr(answer)


def judge_linear(runs, width, exercise):
    n = len(runs)
    sizes = f"B = {B}, T = {T}, D = {width}, F = {F}"
    for rank, run in enumerate(runs):
        if "returned" in run:
            raise NotRight(
                f"rank {rank} returned {run['returned']}",
                "Return y and a function: `return y, backward`. The function takes the gradient of "
                "y and returns of_x, of_weight and of_bias.",
            )
    for phase, names in (("forward", ("y",)), ("backward", NAMES)):
        for rank, run in enumerate(runs):
            sent = run["messages"][phase]
            if run["unwaited"][phase]:
                raise NotRight(
                    f"{sizes}: the {phase} of rank {rank} returned before an all-reduce was over",
                    "An all-reduce with async_op=True only starts. When may you read its result?",
                )
            for name in names:
                if run[name] != RIGHT:
                    lines = "\n".join(f"  {each}: {run[each]}" for each in names)
                    raise NotRight(
                        f"{sizes}; after the {phase}, rank {rank} has\n{lines}\n"
                        f"  messages in the {phase}: {said(sent)}",
                        hint_value(exercise, name, run, phase),
                    )
            if phase == "backward" and run["changed"]:
                raise NotRight(
                    f"right, but rank {rank} wrote into {run['changed'][0]}, which it was given",
                    "An all-reduce writes into its tensor. Autograd, or another layer, may still "
                    "need the old numbers. Which tensor is your own?",
                )
            due = run["due"][phase]
            if sent != [("all_reduce", due)] * bool(due):
                least = said([("all_reduce", due)] * bool(due))
                raise NotRight(
                    f"{sizes}: the numbers are right, but in the {phase} rank {rank} sent "
                    f"{said(sent)}; {n} ranks need {least}",
                    hint_message(exercise, phase, sent, due),
                )


def said(messages) -> str:
    if not messages:
        return "no message"
    return ", ".join(f"{name} of {nbytes:,} bytes" for name, nbytes in messages)


def hint_failure(finding: str, exercise: str) -> str:
    if any(words in finding for words in SHAPES):
        return (
            "Two sizes do not fit. Write the shape beside each tensor: which dim of W belongs to "
            "the outputs, and which one do the ranks share?"
        )
    if "no sign of life" in finding or "SIGABRT" in finding:
        return HANG_HINT
    return ""
