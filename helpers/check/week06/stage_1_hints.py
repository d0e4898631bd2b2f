"""Hints for ZeRO stage 1: from a wrong step, or a wrong norm, to the line that may be wrong."""

PADDING = (
    "The padding is counted in the norm, and it holds anything. Which numbers of this rank's shard "
    "belong to the model?"
)
DIVIDED = "The mean is taken twice. Which of your lines divides by the number of ranks?"
SHARDS = (
    "Each rank has clipped by the norm of its own shard. All ranks need one norm: add up the "
    "squares over the ranks, then take the root."
)
STEPS = {
    "nothing": (
        "The parameters are what they were. Does the optimizer update a tensor of its own, and "
        "which line writes it into params?"
    ),
    "not gathered": (
        "This rank's own shard is right, and the other shards are those of before the step. Which "
        "collective brings the updated shards to every rank?"
    ),
    "divided twice": DIVIDED,
    "the sum": "The gradients are a sum over the ranks. One process takes their mean.",
    "own": "This rank used its own gradient alone. Where do the other ranks' gradients come in?",
    "not clipped": (
        "The gradient is not clipped. By which factor must it be multiplied, if its norm is above "
        "max_norm?"
    ),
    "clipped by shards": SHARDS,
    "padding": PADDING,
    "the sum of norms": (
        "Norms of shards do not add up. Their squares do. Where must the root be taken?"
    ),
    "the norm of the sum": (
        "The gradient is clipped by the norm of the sum over the ranks. Of which gradient is the "
        "norm to be at most max_norm?"
    ),
    "always scaled": (
        "The gradient is scaled in each step. Which gradients must stay as they are?"
    ),
    "the square": "The gradient is divided by the square of the norm. Where is the root?",
    "each number": (
        "Each number was clipped by itself, so the gradient has another direction. One factor must "
        "scale all of its numbers."
    ),
    "a new optimizer": (
        "The optimizer has no memory of the steps before. How often is make_optimizer called?"
    ),
    "added up": (
        "The gradient of the step before is still in the sum. What must happen to .grad between "
        "two steps?"
    ),
    "not a number": (
        "A shard may hold nothing but padding: its norm is 0. Is there a division by it?"
    ),
}
NORMS = {
    "with padding": PADDING,
    "divided twice": DIVIDED,
    "of the sum": "That is the norm of the sum over the ranks. Which gradient is clipped?",
    "the sum of norms": STEPS["the sum of norms"],
    "after clipping": "Return the norm before clipping: it tells whether training is stable.",
    "squared": "That is the square of the norm.",
}


def hint_step(kind: str) -> str:
    """The hint for a kind of `stage_1.kind_of`."""
    return STEPS.get(kind.split(",")[0]) or (
        "Go through one step for two ranks on paper: reduce-scatter the gradients, take the mean, "
        "add up the squares, clip, update the shard, gather the shards."
    )  # fmt: skip


def hint_norm(norm, known: dict[str, float], own: float) -> str:
    """The hint for a returned norm; `known` are those of common mistakes, `own` is the shard's."""
    if isinstance(norm, str):
        return "step returns the norm of the whole gradient before clipping, as a number."
    if abs(norm - own) <= 1e-9 * max(own, 1.0):
        return "That is the norm of this rank's shard. What must be added up over the ranks?"
    for kind, value in known.items():
        if kind in NORMS and abs(norm - value) <= 1e-9 * value:
            return NORMS[kind]
    return "The norm is the root of the sum of all squares, of the mean gradient, without padding."


def hint_failure(finding: str) -> str:
    if "a leaf Variable that requires grad" in finding:
        return "Write into a tensor of autograd under torch.no_grad(), or use its .data."
    if "can't optimize a non-leaf Tensor" in finding:
        return "An optimizer takes leaf tensors. Which call makes a slice one: clone, detach?"
    if "hang" in finding or "no sign of life" in finding or "SIGABRT" in finding:
        return (
            "Do all ranks call the same collectives, also a rank whose shard is nothing but "
            "padding? Are all shards of one size?"
        )
    return ""
