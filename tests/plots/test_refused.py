"""What cannot be drawn is refused, with a word of what is wrong."""

import math

import pytest
import torch

from helpers import plots
from helpers.plots.bar import histogram
from helpers.plots.film import film, frame
from helpers.plots.holdings import replicas, shares
from helpers.plots.roofline import hierarchy, roofline
from helpers.plots.serving import serving, token_rows
from helpers.plots.timeline import Box, timeline
from helpers.plots.traffic_diff import traffic_diff
from tests.plots.steps import a_step, event

BOX = Box(lane="stage 1", start=0, duration=1)
ONE = torch.rand(1, 2, 2)
LATE = (0.0, "blocks.0", "parameters", "held", 1)  # back in time
WRONG = [LATE, (1.0, *LATE[1:3], "hold", 1), (1.0, *LATE[1:4], -1), (1.0, *LATE[1:3], "freed", 1)]


def paged(table, length, count=7):
    return lambda: plots.blocks({"b": ([3], 4), "a": (table, length)}, count, 4)


REFUSED = [
    (lambda: shares((2, 3, 4), []), r"two dims, not \(2, 3, 4\)"),
    *((lambda v=v: plots.bars(v), "no values") for v in ({}, {"a": {}})),
    *((lambda v=v: plots.bars(v, log=True), "positive")
      for v in ({"a": 0}, {"a": 1, "b": 0}, {"a": {"b": -1}})),
    (lambda: plots.bars({"a": {"b": 1}}, stacked=True, log=True), "stacked"),
    *((lambda v=v: plots.memory_bars(v), "bytes")
      for v in ({}, {"a": {}}, {"a": {"x": -1}}, {"a": {"x": 1}, "b": {"x": 1, "y": -1}},
                {"a": {"x": math.nan, "y": 1}})),
    *((lambda v=v: plots.what_fits(v), "positive")
      for v in ({}, {"a": {}}, {"a": {1: 0.0}}, {"a": {1: 1e9, 2: 0.0}})),
    *((lambda v=v: plots.intervals(v), "no rows|outside its interval")
      for v in ({}, {"a": (2, 1, 3)}, {"a": (1, 4, 3)})),
    *((lambda v=v: plots.heat(v), "heat draws a matrix|inhomogeneous")
      for v in ([], [1, 2], [[]], [[1], [1, 2]])),
    *((lambda v=v: plots.pictures(v), r"pictures are \(n, H, W\)")
      for v in ({}, {"a": torch.rand(2, 2)}, {"a": torch.rand(0, 2, 2)},
                {"a": ONE, "b": torch.rand(1, 2, 3)})),
    *((lambda v=v: plots.contours([0, 1], [0, 1], [[0, 1], [1, 2]], levels=v), "no level lies")
      for v in ([], [0], [2], [-1, 3])),
    (lambda: histogram({"gradients": {}}), "no numbers"),
    *((lambda v=v: hierarchy(v), "positive")
      for v in ([], [("x", 1.0, 0.0)], [("x", 1.0, 1.0), ("y", 1.0, -1.0)])),
    (lambda: roofline({}), "no roof"),
    *((lambda v=v: roofline(**({"roofs": {"a": (1, 1)}} | v)), "must be positive")
      for v in ({"roofs": {"a": (1, 1), "b": (0, 1)}}, {"roofs": {"a": (1, -1)}},
                {"operations": {"x": 1, "y": 0}}, {"measured": {"x": (1, 0)}},
                {"measured": {"x": (0, 1)}}, {"intensities": (0, 1)})),
    (lambda: replicas([]), "no ranks"),
    (lambda: plots.blocks({}, 0, 4), "0 blocks of 4 slots; there must be 1 or more of each"),
    (lambda: plots.blocks({}, 2, 0), "2 blocks of 0 slots"),
    (paged([7], 1), "a has block 7, but there are blocks 0 to 6"),
    (paged([-1], 1), "a has block -1"),
    (paged([2, 2], 5), r"a has a block twice in its table \[2, 2\]"),
    (paged([2], 5), "a has 5 tokens, but 1 blocks of 4"),
    (lambda: traffic_diff({"ours": []}, ["a"]), "no strategy sends a message"),
    (lambda: serving({"a": [("sleeping", 0, 1)]}), "kind 'sleeping'; use one of"),
    (lambda: serving({"a": [("decode", 2, 1)]}), "from 2 to 1"),
    *((lambda v=v: token_rows(v), "no run to draw")
      for v in ({}, {"together": {}}, {"a": {"b": [1]}, "empty": {}})),
    (lambda: Box(lane="a", start=0, duration=-1), "negative"),
    *((lambda v=v: timeline([BOX], lanes=v), "stage 1") for v in (["stage 0"], [])),
    *((lambda v=v: plots.pipelines(v), "at least one") for v in ({}, {"x": []})),
    *((lambda v=v: film([*a_step(), event(*v)]), "event 13 of the film cannot be") for v in WRONG),
    *((lambda v=v: frame(a_step(), v), f"1 to 12, not {v}") for v in (13, 0)),
    (lambda: film([]), "at least one"),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "words"), REFUSED)
def test_it_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


@pytest.mark.parametrize("shown", [None, 0])
def test_a_kind_that_a_pipeline_does_not_have(shown):
    with pytest.raises(KeyError, match=r"Q.*there are F, B, I, W"):
        plots.pipelines({"x": [(0, 0, 1, "F", 0, 0), (0, 0, 1, "Q", 0, 0)]}, shown=shown)
