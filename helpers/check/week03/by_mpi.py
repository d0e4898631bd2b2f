"""Exercise of week 3: data parallel with MPI alone, against one process."""

import json
import traceback
from dataclasses import dataclass

import torch
from torch.nn.utils import vector_to_parameters

from helpers.check.answers import same
from helpers.check.exercise import Case, Edit, Ended, Exercise
from helpers.check.ranks import HANG_HINT, first_match
from helpers.check.verdict import NotRight, Verdict, own_frames
from helpers.check.week03.mpi_rank import RANKS, RATE, batches, flat, loss_of_rows, model_of
from helpers.check.week03.mpiexec import Folder, NoMPI, run_on_mpi_ranks
from helpers.runtime.stacks import doing, format_stack, with_cell_names

QUIET = 15.0  # seconds that one training may take; it needs a fraction of one
SINGLE = 1e-5  # what float32 leaves of numbers of size 1
CAUSED_BY_OTHERS = ("MPI_ERR", "MPI_Abort")
START, UPDATE, END, LOSSES = "the start", "the update", "the end", "the losses"
UNTOLD = "The ranks have not shared their gradients. Which call adds them up on every rank?"
ROUNDED = "Nearly right: the model is in float64. Does a float32 tensor carry numbers on the way?"
ERRORS = (  # words of an error, and its hint
    ("requires grad|Can't call numpy", "numpy() needs a tensor without a graph: "
     "parameter.detach().numpy() shares memory."),
    ("MPI_ERR_TRUNCATE|truncated", "The ranks passed buffers of different sizes. Is each buffer as "
     "large on every rank?"),
    ("leaf Variable|in-place operation", "Write into parameters inside `with torch.no_grad():`."),
    ("NoneType", "Is there a gradient before the first backward?"),
)  # fmt: skip


def train(models, shards, loss_sum):
    """Train on all ranks, in this process: `shards[step][rank]` are the rows of a rank.

    Returns:
        Each rank's losses; and its parameters before each step, and after the last.
    """
    losses = [[] for _ in models]
    for model in models:
        vector_to_parameters(flat(models[0]), model.parameters())
    states = [[flat(model)] for model in models]
    for rows in shards:
        sums, counts = zip(*map(loss_sum, models, rows), strict=True)
        own = [of_parameters(*pair) for pair in zip(sums, models, strict=True)]
        whole, targets = sum(own), sum(counts)
        for rank, model in enumerate(models):
            update = whole / targets
            loss = sum(sums) / targets
            vector_to_parameters(flat(model) - RATE * update, model.parameters())
            losses[rank].append(loss.item())
            states[rank].append(flat(model))
    return losses, states


def of_parameters(loss: torch.Tensor, model) -> torch.Tensor:
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([gradient.flatten() for gradient in gradients])


def updating(new: str) -> Edit:
    return Edit("update = whole / targets", f"update = {new}")


def losing(new: str) -> Edit:
    return Edit("loss = sum(sums) / targets", f"loss = {new}")


OWN = "max(counts[rank], 1)"
MEANS = "sum(g / max(n, 1) for g, n in zip(own, counts))"
SLIPS = (
    (Edit("flat(models[0])", "flat(model)"), "The ranks begin with different parameters. Which "
     "collective gives every rank those of rank 0, and does it write into the model's own memory?"),
    (updating("0 * whole"), "The parameters stay the same. Which line changes the model's?"),
    (updating("-whole / targets"), "The sign of the update is wrong. In which direction does the "
     "loss go down?"),
    (updating("whole"), "The gradients are summed, not averaged. Over how many targets is the loss "
     "a mean?"),
    (updating("whole / len(models)"), "The sum is divided by the number of ranks. Divide by "
     "targets: how many does the global batch count?"),
    (updating("whole / targets * len(models)"), "Too large by the number of ranks. Is the sum over "
     "the ranks the mean already?"),
    (updating("whole / targets / len(models)"), "Too small by the number of ranks. What have you "
     "divided by before?"),
    (updating(f"{MEANS} / len(models)"), "A mean of means. Must a target count more because its "
     "rank has fewer targets?"),
    (updating(MEANS), "Means are added up. Add up sums, and divide once by the targets of all "
     "ranks."),
    (updating(f"own[rank] / {OWN}"), UNTOLD),
    (updating("own[rank] / targets"), UNTOLD),
    (updating(f"whole / {OWN}"), "The sum is divided by this rank's own targets. How many do all "
     "ranks count together? The ranks must share that number, too."),
    (Edit("for rows in shards:", "every = []\n    for rows in shards:",
          "for rank,", "every.append(whole)\n        for rank,",
          "update = whole / targets", "update = sum(every) / targets"),
     "What does backward do with the gradients of the step before?"),
    (losing("sum(sums)"), "That is the summed loss. Divide it by the targets of the global batch."),
    (losing("sum(sums) / len(models)"), "That is the summed loss over the number of ranks. Count "
     "targets."),
    (losing(f"sums[rank] / {OWN}"), "That is the loss of this rank's rows alone."),
    (losing("sums[rank] / targets"), "That is this rank's part of the loss. Add up the ranks' "
     "parts."),
)  # fmt: skip
WORDS = {
    START: "in the first step rank {rank} does not have rank 0's parameters",
    UPDATE: "step 1: the update of rank {rank} is not that of one process",
    END: "the first step is right, but after {steps} steps the parameters of rank {rank} differ "
    "from one process's",
}
GENERAL = {
    START: SLIPS[0][1],
    UPDATE: "Is every parameter's gradient in the buffer, and does each part get back to its own "
    "parameter? Print both sides on one rank.",
    END: "What does backward do with the gradients of the step before? Does the last batch count, "
    "and is every step divided by its own number of targets?",
    LOSSES: "The loss is the mean over the targets of all ranks, before the update of the step.",
}


@dataclass(frozen=True, kw_only=True)
class ByMPI(Exercise):
    """The exercise. Its cases run under one `mpiexec`; then each case's reports are judged.

    What is right does not depend on which rank has which rows. What a mistake leaves does: so the
    mistakes run with the rows that the student's ranks took.
    """

    def __call__(self, fn) -> Verdict:
        if only_raises(fn):
            return Verdict(self.name, "not written yet")  # without a start of mpiexec
        try:
            return super().__call__(run_on_mpi_ranks(fn, max(RANKS), QUIET))
        except NoMPI as error:
            return Verdict(self.name, "wrong", str(error), "Your function was not run.")
        except Exception as error:  # cloudpickle's, about something in the function
            return Verdict(self.name, "wrong", f"the function cannot travel to the ranks: {error}")

    def trace(self, folder: Folder, case):
        (ranks,) = case.arguments
        reports = [folder.report(ranks, rank) for rank in range(ranks)]
        found = [json.loads(report) if report else None for report in reports]
        try:
            check_ends(found, folder)
            rows = [[call["rows"] for call in one["calls"]] for one in found]
            judge_rows(rows, [batch.tolist() for batch in batches()])
        except NotImplementedError:
            raise Ended(Verdict(self.name, "not written yet")) from None
        except NotRight as wrong:
            finding = f"{case.words}: {wrong.finding}"
            raise Ended(Verdict(self.name, "wrong", finding, wrong.hint)) from None
        states = [[call["state"] for call in one["calls"]] + [one["state"]] for one in found]
        trace = traced([o["losses"] for o in found], [[*map(numbers, each)] for each in states])
        return {**trace, "rows": rows}

    def complaint(self, facet, found, right, case):
        rank = next(r for r, one in enumerate(found) if not same(one, right[r], self.close))
        mine, steps = found[rank], len(batches())
        if facet != LOSSES:
            near = torch.allclose(mine, right[rank], rtol=0, atol=SINGLE)
            hint = ROUNDED if near and facet == UPDATE else GENERAL[facet]
            return NotRight(WORDS[facet].format(rank=rank, steps=steps), hint)
        start = f"the training is right, but rank {rank} returned"
        if not isinstance(mine, list) or len(mine) != steps:
            returned = f"{len(mine)} losses" if isinstance(mine, list) else mine
            hint = f"Return a list with the loss of each of the {steps} steps, on every rank."
            return NotRight(f"{start} {returned}", hint)
        if not all(isinstance(loss, float | int) for loss in mine):
            hint = "Each loss is a Python number: .item(), or float(…)."
            return NotRight(f"{start} a list of {mine[0]}", hint)
        words = [[round(loss, 4) for loss in losses] for losses in (mine, right[rank])]
        return NotRight(
            f"{start} the losses {words[0]}; one process has {words[1]}",
            ROUNDED if same(mine, right[rank], SINGLE) else GENERAL[facet],
        )

    def hint(self, found, cases, facet, general):
        given = []
        for case, trace in zip(cases, found, strict=False):
            shards = [*zip(*trace["rows"], strict=True)]
            given.append(Case(f"{case.words}, {shards}", (*case.arguments, shards)))
        return super().hint(found, given, facet, general)


def play(solve, ranks: int, shards=None) -> dict:
    """Return the trace of a training in this process; without shards, rank 0 has all rows."""
    models = [model_of(rank) for rank in range(ranks)]
    shards = shards or [[rows, *[[]] * (ranks - 1)] for rows in batches()]
    rows = [[torch.as_tensor(rows, dtype=torch.long) for rows in step] for step in shards]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads wait for each other at each small tensor
    try:
        return traced(*solve(models, rows, loss_of_rows))
    finally:
        torch.set_num_threads(threads)


def traced(losses, states) -> dict:
    """The facets; `states[rank]` are the parameters before each step, and after the last."""
    return {
        START: [each[0] for each in states],
        UPDATE: [(each[0] - each[1]) / RATE for each in states],
        END: [each[-1] for each in states],
        LOSSES: losses,
    }


def numbers(state: list[float]) -> torch.Tensor:
    return torch.tensor(state, dtype=torch.float64)


def only_raises(fn) -> bool:
    """The stub: its code names nothing but the error that it raises."""
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_names == ("NotImplementedError",)


def judge_rows(shards: list[list[list[int]]], batches: list[list[int]]):
    """Each row of a step's batch is on one rank, once. `shards[rank][step]` are rows."""
    for rank, calls in enumerate(shards):
        if len(calls) != len(batches):
            raise NotRight(
                f"rank {rank} called loss_sum {len(calls)} times in {len(batches)} steps",
                "Call loss_sum once a step on every rank, even if the rank has no rows.",
            )
    for step, (batch, *each) in enumerate(zip(batches, *shards, strict=True)):
        every = sorted(row for rows in each for row in rows)
        if every == sorted(batch):
            continue
        listing = "\n".join(f"  rank {rank} takes rows {rows}" for rank, rows in enumerate(each))
        if len(each) > 1 and all(sorted(rows) == sorted(batch) for rows in each):
            hint = "Every rank takes the whole batch. Which share is a rank's own?"
        elif len(each) > 1 and all(rows == each[0] for rows in each):
            hint = "The ranks see the same rows. Where does the rank's number count?"
        elif missing := sorted(set(batch) - set(every)):
            hint = f"Rows {missing} are on no rank. The batch need not divide evenly."
        else:
            hint = "Some rows are on two ranks, or not of this batch. Each row counts once."
        raise NotRight(f"step {step + 1}, global batch {batch}\n{listing}", hint)


def check_ends(found: list[dict | None], folder: Folder):
    """Raise NotRight for an error, a hang, or an end without a report; or NotImplementedError."""
    errors = {rank: one for rank, one in enumerate(found) if one and "error" in one}
    if any(one["not written"] for one in errors.values()):
        raise NotImplementedError
    for rank, one in sorted(errors.items(), key=lambda item: caused(item[1]["error"])):
        frames = [traceback.FrameSummary(*frame) for frame in one["frames"]]
        lines = own_frames(with_cell_names("".join(traceback.format_list(frames))))
        finding = f"rank {rank} raised {one['error']}\n{lines}".rstrip()
        raise NotRight(finding, first_match(ERRORS, one["error"]))
    if None not in found:
        return
    if stacks := folder.stacks():
        lines = [f"no progress for {QUIET:g} s: a hang"]
        lines += [f"rank {r} was {doing(s)}\n{format_stack(s)}" for r, s in stacks.items()]
        lines += [f"rank {rank} had returned" for rank, one in enumerate(found) if one]
        raise NotRight(own_frames("\n".join(lines)), HANG_HINT)
    said = folder.printed().strip().splitlines()[-8:]
    raise NotRight("\n".join([f"rank {found.index(None)} ended without a report", *said]))


def caused(error: str) -> bool:
    """An error that another rank's end has caused is shown last."""
    return any(word in error for word in CAUSED_BY_OTHERS)


train_by_mpi = ByMPI(
    right=train,
    cases=[(f"{n} rank{'s' * (n > 1)}", (n,)) for n in RANKS],
    play=play,
    slips=SLIPS,
    close=1e-10,  # sums over ranks are added in another order
)
