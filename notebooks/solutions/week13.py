"""Solutions of week 13: a model of a cluster."""


def alpha_beta(small, large, ranks):
    """The slope between the two points, over the bytes that a rank sends."""
    each = 2 - 2 / ranks
    beta = (large[1] - small[1]) / (large[0] - small[0]) / each
    return large[1] - beta * each * large[0], beta


def pipeline_seconds(stages, micro_batches, gradients, update):
    """One micro-batch passes all stages; the others follow at the slowest stage's pace."""
    pace = max(stages)
    last = max(map(sum, zip(gradients, update, strict=True)))
    return sum(stages) - pace + micro_batches * pace + last
