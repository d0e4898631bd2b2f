"""A recipe's layout fills the seams that the recipe does not name."""

from functools import partial

import pytest

from helpers.comm.mesh import Layout
from helpers.parallel.composed import composed
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.pipeline.engine import Pipeline
from helpers.parallel.recipe import Recipe
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.plans.schedules import gpipe, one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_v


class Mesh:
    """A layout without ranks."""

    def __init__(self, **sizes):
        self.layout = Layout(**sizes)


def test_a_recipe_fills_the_seams_that_it_does_not_name():
    def seams(recipe, m=4, **sizes):
        made, count = composed(recipe, Mesh(**sizes), m)
        names = [getattr(s, "func", s).__name__ for s in (made.transform, made.engine, made.owner)]
        return names, count

    assert seams(Recipe(), dp=1) == (["plain", "InTurn", "Local"], 4)
    assert seams(Recipe(), dp=1, tp=1) == (["plain", "InTurn", "Local"], 4)
    assert seams(Recipe(), dp=2) == (["plain", "InTurn", "Replicated"], 4)
    assert seams(Recipe(), tp=2, pp=1) == (["tensor_parallel", "InTurn", "Local"], 4)
    assert seams(Recipe(), pp=2, dp=2) == (["pipeline", "Pipeline", "Replicated"], 4)
    own = Recipe(owner=partial(Replicated, bucket_cap_mb=1))
    assert composed(own, Mesh(pp=2, dp=2), 1)[0].owner is own.owner
    engine = partial(Pipeline)
    assert composed(Recipe(engine=engine), Mesh(pp=2, dp=2), 1)[0].engine is engine
    given = Recipe(layout=Layout(pp=2), schedule=gpipe(2, 6))
    assert seams(given, None, pp=2)[1] == 6
    made, _ = composed(Recipe(transform=sequence_parallel), Mesh(pp=2, tp=2), 2)
    assert made.transform.keywords["inner"] is sequence_parallel


def test_hand_written_backwards_are_left_out_where_a_backward_is_split():
    def overlap(schedule):
        recipe = Recipe(layout=Layout(pp=2, tp=2), schedule=schedule)
        made, _ = composed(recipe, Mesh(pp=2, tp=2), 2)
        return made.transform.keywords["inner"].keywords["overlap"]

    assert composed(Recipe(), Mesh(tp=2), 2)[0].transform.keywords == {"overlap": True}
    assert overlap(one_f_one_b)
    assert not overlap(zero_bubble_v)


@pytest.mark.parametrize("sizes", [{"dp": 2}, {"pp": 1, "dp": 2}], ids=str)
def test_a_schedule_needs_a_pipeline(sizes):
    recipe = Recipe(layout=Layout(**sizes), schedule=one_f_one_b)
    with pytest.raises(ValueError, match="has no pipeline for a schedule"):
        composed(recipe, Mesh(**sizes), 2)


def test_the_pipeline_s_schedule_is_the_given_one_or_1f1b():
    def schedule(recipe, m):
        made, count = composed(recipe, Mesh(pp=2), m)
        return made.transform.keywords["schedule"], count

    assert schedule(Recipe(), 3) == (one_f_one_b(2, 3), 3)
    assert schedule(Recipe(), None) == (one_f_one_b(2, 1), 1)
    given = Recipe(layout=Layout(pp=2), schedule=gpipe)
    assert schedule(given, 3) == (gpipe(2, 3), 3)
