"""Fill a recipe's seams by its layout: tensor, context, expert, pipeline, then data parallel."""

from collections.abc import Callable, Sequence
from functools import partial

from helpers.comm.mesh import Mesh
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.engines.in_turn import InTurn
from helpers.parallel.mixture.transform import expert_parallel
from helpers.parallel.owners.local import Local
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.pipeline.stages import pipeline
from helpers.parallel.tensor.transform import tensor_parallel
from helpers.parallel.transform import plain
from helpers.plans.schedules import Schedule, one_f_one_b


def composed(
    mesh: Mesh,
    schedule: Schedule | Callable[[int, int], Schedule] | None,
    micro_batches: int | None,
    *,
    transform: Callable,
    engine: Callable,
    owner: Callable,
    cuts: Sequence[int] | None = None,
) -> tuple[dict[str, Callable], int]:
    """Fill the seams that the mesh's layout asks for. A seam that is named already stays.

    An axis of size 1 changes nothing.

    Args:
        schedule: of the pipeline, as for Recipe.
        micro_batches: m of the schedule; None for 1, or for the m of a schedule that is given as
            data.
        transform, engine, owner: as for Recipe; the defaults are not named.
        cuts: of the pipeline, as for Recipe.

    Returns:
        The three seams by name, and the number of micro-batches.

    Raises:
        ValueError: a schedule, or cuts, without an axis "pp" of at least 2 ranks.
    """
    wide = {axis for axis in mesh.layout.axes if mesh.layout.size(axis) > 1}
    m = getattr(schedule, "micro_batches", 1) if micro_batches is None else micro_batches
    if (schedule is not None or cuts is not None) and "pp" not in wide:
        raise ValueError(
            f"{mesh.layout.title()} has no pipeline for a schedule or cuts: name an axis pp of 2 "
            "or more ranks, or leave them out"
        )
    if "pp" in wide:
        order = made(schedule or one_f_one_b, mesh.layout.size("pp"), m)
        engine = Pipeline if engine is InTurn else engine
    if transform is plain:
        if "tp" in wide:
            # Hand-written backwards compute both gradients at once: only plain ones can be split.
            transform = partial(tensor_parallel, overlap="pp" not in wide or not order.split)
        if "cp" in wide:
            transform = partial(context_parallel, inner=transform)
        if "ep" in wide:
            transform = partial(expert_parallel, inner=transform)
    if "pp" in wide:
        transform = partial(pipeline, schedule=order, inner=transform, cuts=cuts)
    if wide & {"dp", "cp", "ep"} and owner is Local:
        owner = Replicated
    return {"transform": transform, "engine": engine, "owner": owner}, m


def made(schedule: Schedule | Callable[[int, int], Schedule], ranks: int, m: int) -> Schedule:
    """A schedule, or what the function makes for these ranks and micro-batches."""
    return schedule if isinstance(schedule, Schedule) else schedule(ranks, m)
