"""Exercises of week 11: what stays on the GPU, the bandwidth that is needed, a delayed update."""

import torch

from helpers.check import hidden
from helpers.check.exercise import Edit, Exercise, among, parted
from helpers.check.number import Number

# least_link_bytes


def fewest_bytes(room, params, passes):
    kept = min(params, room / 2)
    whole = min(params, (room - 2 * kept) / 14)
    return 4 * (kept - whole) + 2 * (1 + passes) * (params - kept)


def whole_first(room, params, passes):
    whole = min(params, room / 16)
    kept = whole + min(params - whole, (room - 16 * whole) / 2)
    return 4 * (kept - whole) + 2 * (1 + passes) * (params - kept)


KEPT, WHOLE = "min(params, room / 2)", "min(params, (room - 2 * kept) / 14)"
least_link_bytes = Number(
    right=fewest_bytes,
    unit="bytes",
    close=1e-9,
    draw=among(room=(1e9, 5e11), params=(1e9, 9e10), passes=(2, 48)),
    cases=(  # in the order of the arguments
        ("13 billion parameters, 80 GB", (80e9, 13e9, 3)),
        ("13 billion parameters, room for 2 bytes of each", (26e9, 13e9, 3)),
        ("70 billion parameters, 80 GB", (80e9, 70e9, 3)),
        ("70 billion parameters, 80 GB, without recomputation", (80e9, 70e9, 2)),
        ("70 billion parameters, 80 GB, 8 micro-batches", (80e9, 70e9, 24)),
        ("3 billion parameters, 80 GB", (80e9, 3e9, 3)),
        ("7 billion parameters, no room", (0.0, 7e9, 3)),
    ),
    slips=(
        (whole_first, "You give some parameters all their 16 bytes first. How many bytes over the "
         "link does a byte of room save in each way? The first 2 of a parameter, or the other 14?"),
        (Edit("/ 14", "/ 16"), "A parameter has its own 2 bytes on the GPU already. How many more "
         "does it need?"),
        (Edit("/ 14", "/ 12"), "The gradient stays, too, if the GPU updates: 2 bytes more."),
        (Edit("(room - 2 * kept)", "room"), "The 2 bytes of each parameter take room first. How "
         "much is left?"),
        (Edit(WHOLE, "params * (room >= 16 * params)"), "Some parameters may have all their bytes "
         "on the GPU, although not all of them can: how many, with the room that is left?"),
        (Edit(WHOLE, "0"), "Where there is more room than 2 bytes for each parameter, some "
         "parameters have all their bytes on the GPU, and send nothing."),
        (Edit(KEPT, "params * (room >= 2 * params)", WHOLE, "min(kept, (room - 2 * kept) / 14)"),
         "If the room is too small for all parameters, it is large enough for some of them."),
        (Edit(KEPT, "params"), "The parameters alone may need more room than there is."),
        (Edit(WHOLE, "(room - 2 * kept) / 14"), "Room that nothing needs saves no bytes: no more "
         "than all parameters can stay."),
        (Edit("4 * (kept", "2 * (kept"), "Where the 2 bytes stay, two things cross: a gradient "
         "goes down, and what comes up?"),
        (Edit("(1 + passes)", "passes"), "A parameter of which nothing stays has a gradient: it "
         "goes down, too."),
        (Edit("(1 + passes)", "(2 + passes)"), "A parameter of which nothing stays is updated "
         "where it waits: the next pass brings it up anyway, not once more."),
        (Edit("(1 + passes)", "(1 + passes) / 2"), "A parameter in 16 bits, and its gradient, have "
         "2 bytes each."),
    ),
    last="The room goes to what saves most for each byte: first 2 bytes of every parameter, then "
    "the other 14 of as many as fit.",
)  # fmt: skip


# needed_bandwidth


def bandwidth_of(share, moved, tokens, flops_per_second, recompute, overlap):
    flops = (8 if recompute else 6) * tokens
    ratio = flops / moved
    odds = share if overlap else share / (1 - share)
    return flops_per_second / ratio * odds


ODDS, EACH = "share if overlap else share / (1 - share)", "(8 if recompute else 6)"
needed_bandwidth = Number(
    right=bandwidth_of,
    unit="bytes/s",
    close=1e-9,
    draw=among(share=(0.01, 0.99), moved=(2, 40), tokens=(1000, 99_000),
               flops_per_second=(1e12, 9e14), recompute=[False, True], overlap=[False, True]),
    cases=(  # share, moved, tokens, FLOP/s, recompute, overlap
        ("parameters and gradients, one half", (0.5, 8, 1024, 70e12, True, False)),
        ("optimizer state, 90 %", (0.9, 32, 2048, 70e12, True, False)),
        ("updates on the host, 80 %", (0.8, 4, 16_384, 400e12, True, False)),
        ("the same, all overlapped", (0.8, 4, 16_384, 400e12, True, True)),
        ("the same, without recomputation", (0.8, 4, 16_384, 400e12, False, False)),
        ("all overlapped, nothing lost", (1.0, 6, 4096, 250e12, False, True)),
    ),
    slips=(
        (Edit(ODDS, "share"), "Without overlap, the step is compute + wait. Solve share = compute "
         "/ (compute + wait) for the wait, then for the bytes/s."),
        (Edit(ODDS, "share / (1 - share) if share < 1 else 1"),
         Edit(ODDS, "1 if overlap else share / (1 - share)"),
         Edit(ODDS, "1 / share if overlap else share / (1 - share)"), "With overlap, the step "
         "takes as long as the slower of both. What is the share, if the link is the slower one?"),
        (Edit(ODDS, "share / (1 - share) if overlap and share < 1 else share"), "With and without "
         "overlap are the wrong way round."),
        (Edit("share / (1 - share)", "(1 - share) / share"), "A higher efficiency needs a faster "
         "link, not a slower one."),
        (Edit("share / (1 - share)", "1 / (1 - share)"), "share / (1 - share) is compute over "
         "wait. Yours is the whole step over the wait."),
        (Edit(EACH, "6"), "With recomputation, a step computes the forward twice."),
        (Edit(EACH, "8"), "Without recomputation, a step computes the forward once: how many FLOPs "
         "for each token and parameter?"),
        (Edit(EACH, "(4 if recompute else 2)"), "The backward computes twice as much as the "
         "forward, and counts, too."),
        (Edit("/ ratio", "* ratio"), "The ratio is FLOPs for each byte. How many bytes belong to "
         "the FLOPs of a second?"),
    ),
    last="FLOPs of a step over its bytes, both for each parameter, are the arithmetic intensity A. "
    "Without overlap, compute / wait = A · bandwidth / FLOP/s.",
)  # fmt: skip


# delayed_step

NUMBERS, RATE = 5, 0.3
STATE = ("parameters", "master", "waiting")


def starts():
    for steps in (1, 2, 6):
        generator = torch.Generator().manual_seed(hidden.seed(steps))
        first = torch.rand(NUMBERS, generator=generator, dtype=torch.float64)
        yield f"{steps} step{'s' * (steps > 1)}", (steps, first)


def play_steps(solve, steps, first) -> dict:
    """Several steps: what the gradients saw, what the updates used, and what the last returned."""
    seen, used = [], []

    def gradient(parameters):
        seen.append(parameters.clone())
        return (parameters**3 - parameters + 0.1).float()

    def update(master, g):
        used.append(g.clone())
        return master - RATE * g

    state = (first.float(), first.clone(), None)
    for _ in range(steps):
        trace = parted(solve(*state, gradient, update), STATE)
        if len(trace) == 1:  # no three values
            break
        state = tuple(trace[name] for name in STATE)
    noted = {"parameters of each gradient": seen, "gradients of the updates": used}
    return {"returned": trace["returned"], **noted, **trace}


def one_late(parameters, master, waiting, gradient, update):
    g = gradient(parameters)
    if waiting is not None:
        master = update(master, waiting)
    return master.float(), master, g


IF, RETURN = "if waiting is not None:", "return master.float(), master, g"
UPDATE = "update(master, waiting)"
delayed_step = Exercise(
    right=one_late,
    play=play_steps,
    names=STATE,
    cases=lambda: list(starts()),
    close=1e-12,
    slips=(
        (Edit(IF, "if True:", UPDATE, "update(master, g)"), "This update is not late: it uses this "
         "step's own gradient, so the host cannot begin before the GPU has ended."),
        (Edit(UPDATE, "update(update(master, waiting), g)"), "The new gradient waits: this step "
         "updates with the last one alone."),
        (Edit(IF, "if waiting is None:\n        waiting = g\n    if True:"), "In the first step "
         "nothing waits, so nothing is updated."),
        (Edit("g = gradient(parameters)", "if waiting is None:\n        return parameters, master, "
              "None\n    g = gradient(parameters)"), "The first step, too, computes a gradient: "
         "the second step updates with it."),
        (Edit("g = gradient(parameters)", "", RETURN, "return master.float(), master, "
              "gradient(master.float())"), "The gradient is of parameters that the GPU does not "
         "have yet: it computes beside the update, not after it."),
        (Edit("g = gradient(parameters)", "g, old = gradient(parameters), master.float()",
              "return master.float()", "return old"), "The GPU's parameters are two updates "
         "behind: at the end of the step, it gets what the host has updated in this step."),
        (Edit("return master.float()", "return parameters"), "The GPU never gets the updated "
         "values."),
        (Edit("master, g", "master, g if waiting is None else waiting"), "The waiting gradient is "
         "used up. Which one waits now?"),
        (Edit("master, g", "master, None"), "The new gradient is lost: no later step gets it."),
        (Edit(UPDATE, "update(parameters.double(), waiting)"), "The GPU's copy has fewer digits. "
         "Update the master copy, so that small updates add up."),
        (Edit("gradient(parameters)", "gradient(master)"), "The GPU computes with its own copy, "
         "in float32. The master copy is on the host."),
        (Edit("return master.float()", "return master"), "The GPU's parameters are float32."),
    ),
    last="Three lines: a gradient with the GPU's parameters; an update of the master copy with "
    "the gradient that waits, if there is one; and what the next step starts from.",
)  # fmt: skip
