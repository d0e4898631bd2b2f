"""Exercises of week 13: alpha and beta of a link, the seconds of a pipeline's step."""

from helpers.check.exercise import Edit, Exercise
from helpers.check.number import Number

# alpha_beta


def two_points(small, large, ranks):
    (a, s), (b, t) = ((2 * (ranks - 1) / ranks * n, seconds) for n, seconds in (small, large))
    beta = (t - s) / (b - a)
    return s - beta * a, beta


def drawn_link(random):
    ranks, alpha, beta = random.randint(2, 16), random.random() / 50, random.random() / 1e7
    pair = []
    for nbytes in (random.randint(1, 9) * 1000, random.randint(1, 9) * 1_000_000):
        pair.append((nbytes, alpha + beta * 2 * (ranks - 1) / ranks * nbytes))
    return f"{ranks} ranks", (*pair, ranks)


FACTOR = "2 * (ranks - 1) / ranks * n"
alpha_beta = Exercise(
    right=two_points,
    names=("alpha", "beta"),
    close=1e-9,
    draw=drawn_link,
    cases=(  # small, large, ranks
        ("2 ranks", ((1000, 0.00103), (1_000_000, 0.031), 2)),
        ("4 ranks", ((400_000, 0.05), (2_000_000, 0.17), 4)),
        ("8 ranks, the larger call first", ((2_000_000, 0.195), (400_000, 0.055), 8)),
    ),
    slips=(
        (Edit(FACTOR, "n"), "A rank of a ring does not send the tensor once: how many bytes does "
         "it send on n ranks?"),
        (Edit(FACTOR, "(ranks - 1) / ranks * n"), "An all-reduce is a reduce-scatter and an "
         "all-gather: each of them sends so many bytes."),
        (Edit(FACTOR, "2 * n"), "Each of the two halves sends (n - 1) / n of the tensor."),
        (Edit(FACTOR, "2 * (ranks - 1) * n"), "Each of the 2 (n - 1) messages has an n-th of the "
         "tensor."),
        (Edit("return s - beta * a, beta", "return s, beta"), "The smaller call has bytes, too: "
         "subtract their time."),
        (Edit("return s - beta * a, beta", "return s - beta * a, 1 / beta"), "beta is in seconds "
         "for each byte. Yours is the bandwidth."),
        (Edit("return s - beta * a, beta", "return s + beta * a, beta"), "alpha is what is left of "
         "a call's time without its bytes."),
        (Edit("beta = (t - s) / (b - a)", "beta = t / b"), "The larger call contains alpha, too: "
         "take the difference of both calls."),
    ),
    last="Two equations with two unknowns: seconds = alpha + beta · 2 (n - 1) / n · bytes.",
)  # fmt: skip

# pipeline_seconds


def seconds_of_step(stages, micro_batches, gradients, update):
    ends = [g + u for g, u in zip(gradients, update, strict=True)]
    return sum(stages) + (micro_batches - 1) * max(stages) + max(ends)


def drawn_stages(random):
    stages = random.randint(2, 8)
    rows = [[random.randint(1, 99) / 10 for _ in range(stages)] for _ in range(3)]
    return f"{stages} stages", (rows[0], random.randint(1, 32), rows[1], rows[2])


WHOLE, END = "sum(stages) + (micro_batches - 1) * max(stages)", "max(ends)"
pipeline_seconds = Number(
    right=seconds_of_step,
    unit="seconds",
    close=1e-9,
    draw=drawn_stages,
    cases=(  # stages, micro-batches, gradients, update
        ("equal stages", ([2.0] * 4, 8, [1.0] * 4, [0.5] * 4)),
        ("a slow last stage", ([2.0, 2.0, 2.0, 3.0], 8, [1.0] * 4, [0.5] * 4)),
        ("a slow first update", ([2.0, 2.0, 2.5], 16, [0.1, 0.3, 0.2], [0.6, 0.1, 0.3])),
        ("one stage", ([2.0], 4, [0.5], [0.25])),
        ("one micro-batch", ([1.0, 4.0, 2.0], 1, [0.0] * 3, [1.0, 0.0, 0.0])),
    ),
    slips=(
        (Edit(WHOLE, "micro_batches * max(stages)"), "The pipeline fills and drains: the first "
         "micro-batch passes all stages."),
        (Edit(WHOLE, "micro_batches * sum(stages)"), "Stages work at the same time on different "
         "micro-batches."),
        (Edit(WHOLE, "(micro_batches + len(stages) - 1) * max(stages)"), "Only the slowest stage "
         "takes so long. The first micro-batch passes each stage in its own time."),
        (Edit(WHOLE, "sum(stages) * (micro_batches + len(stages) - 1) / len(stages)"), "The "
         "slowest stage sets the pace, not the mean."),
        (Edit("(micro_batches - 1)", "micro_batches"), "The sum contains the slowest stage's first "
         "micro-batch already."),
        (Edit(END, "sum(ends)"), "The stages sum gradients and update at the same time."),
        (Edit(END, "max(gradients) + max(update)"), "A stage updates after its own gradients: the "
         "slowest sum counts."),
        (Edit(END, "max(gradients)"), "The update is missing."),
        (Edit(END, "max(update)"), "The gradients are missing."),
        (Edit(END, "ends[stages.index(max(stages))]"), "The stage whose gradients and update take "
         "longest need not be the slowest in the pipeline."),
    ),
    last="Sum of the stages, plus (micro-batches - 1) times the slowest, plus the longest of "
    "gradients and update together.",
)  # fmt: skip
