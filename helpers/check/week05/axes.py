"""Exercise of week 5: which axis goes where in a given cluster."""

import math

from helpers.check.exercise import Exercise
from helpers.check.verdict import NotRight
from helpers.comm.mesh import Layout

GB = 10**9
# Words, then nodes, GPUs of a node, heads, layers, bytes of the model's states, bytes of a GPU.
CASES = (
    ("a model that fits into one GPU", (2, 8, 16, 24, 20 * GB, 60 * GB)),
    ("a model that fits into a node", (4, 8, 32, 48, 200 * GB, 60 * GB)),
    ("a model of three nodes' memory", (16, 8, 96, 96, 1400 * GB, 60 * GB)),
    ("6 heads in nodes of 8 GPUs", (4, 8, 6, 12, 300 * GB, 60 * GB)),
    ("8 layers in nodes of 4 GPUs", (12, 4, 16, 8, 700 * GB, 60 * GB)),
)


def drawn(random):
    """A cluster that one model fits into, if all its GPUs share it."""
    nodes, heads, layers = random.choice((2, 4, 8)), *(8 * random.randint(1, 9) for _ in "hl")
    states = random.uniform(0.1, 0.9) * nodes * 8 * 60 * GB
    return "another cluster", (nodes, 8, heads, layers, int(states), 60 * GB)


def candidates(nodes, gpus_per_node, heads, layers, state_bytes, gpu_bytes):
    """(tp, pp) of every layout that fits, with tp inside a node."""
    world = nodes * gpus_per_node
    for tp in range(1, gpus_per_node + 1):
        for pp in range(1, layers + 1):
            divides = not (gpus_per_node % tp or heads % tp or layers % pp or world % (tp * pp))
            if divides and state_bytes <= tp * pp * gpu_bytes:
                yield tp, pp


def best(*cluster) -> tuple[int, int]:
    """The fewest GPUs for one model, and of those the layout with the most tensor parallelism."""
    return min(candidates(*cluster), key=lambda pair: (pair[0] * pair[1], -pair[0]))


def judge_axes(trace, right, nodes, gpus_per_node, heads, layers, state_bytes, gpu_bytes):
    """Raise what is wrong first: a layout need not be the reference's pair of sizes."""
    answer = trace["returned"]
    if not isinstance(answer, Layout):
        raise NotRight(f"returned {answer!r}", "Return a Layout: Layout(pp=2, dp=4, tp=8).")
    if sorted(answer.axes) != ["dp", "pp", "tp"]:
        raise NotRight(
            f"returned {answer.title()}", "Name the three axes dp, pp and tp; a size may be 1."
        )
    tp, pp, gpus = answer.size("tp"), answer.size("pp"), nodes * gpus_per_node
    enough, crossing = math.prod(right["returned"]), None
    if answer.world_size == gpus:  # 10**9 ranks would take for ever
        crossing = crosses(answer, gpus_per_node)
    across = f"\n  the tensor-parallel group {crossing} is on several nodes"
    held = f"{state_bytes / (tp * pp) / GB:.4g}e9 bytes of states"
    for wrong, words, hint in (
        (answer.world_size != gpus, f", which is {answer.world_size} ranks on {gpus} GPUs",
         "Every GPU has one rank: what is left of the GPUs for dp?"),
        (crossing and answer.axes[-1] != "tp" and tp <= gpus_per_node, across, "A Layout's last "
         "axis has neighbouring ranks. Which axis communicates in every layer?"),
        (crossing, across, "Tensor parallelism sends four all-reduces for each layer and "
         "micro-batch. On which links must they stay?"),
        (heads % tp, f", with {heads} heads", "Each rank of tp has whole heads: which sizes "
         "divide?"),
        (layers % pp, f", with {layers} layers", "Equal stages: which sizes divide the layers?"),
        (state_bytes > tp * pp * gpu_bytes, f": {held} on a GPU that has {gpu_bytes / GB:.4g}e9 "
         "for them", "Data-parallel replicas do not make a model smaller. Which two axes split the "
         "states?"),
        (tp * pp > enough, f": it fits, but {enough} GPU{'s are' if enough > 1 else ' is'} enough "
         "for one model", "Split the model no further than its memory asks for. More replicas mean "
         "less communication inside each model, and a smaller bubble."),
        ((tp, pp) != right["returned"], ": it fits, but it has more stages than it needs", "A "
         "pipeline has a bubble, and the links inside a node are fast. Which axis splits the model "
         "first, up to the size of a node?"),
    ):  # fmt: skip
        if wrong:
            said = f"{nodes} nodes of {gpus_per_node} GPUs; you said {answer.title()}"
            raise NotRight(said + words, hint)


def crosses(layout: Layout, gpus_per_node: int) -> list[int] | None:
    """The first tensor-parallel group that is on more than one node."""
    for group in layout.groups("tp"):
        if len({rank // gpus_per_node for rank in group}) > 1:
            return group
    return None


place_axes = Exercise(
    right=best,
    free=("returned",),
    rule=judge_axes,
    draw=drawn,
    cases=CASES,
)
