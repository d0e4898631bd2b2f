"""A state that does not fit a model is refused in one plain sentence; a state that fits is not."""

import re

import pytest
import torch

from helpers.state.accept import accept

SHAPES = {"embedding.weight": (5, 3), "blocks.0.up.weight": (4, 3), "scale": ()}


def state():
    model = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    moments = {name: {"step": torch.tensor(2.0), "exp_avg": t.clone()} for name, t in model.items()}
    return {"model": model, "optimizer": moments | {"scale": {"momentum_buffer": None}}}


def spoiled(*path, value):
    """A state with a value at a path: `spoiled("model", "scale", value=…)`; None removes it."""
    found = made = state()
    for key in path[:-1]:
        found = found[key]
    if value is None:
        del found[path[-1]]
    else:
        found[path[-1]] = value
    return made


NAN = torch.full((4, 3), float("nan"))
LAST_NAN = torch.ones(4, 3).index_put((torch.tensor(3), torch.tensor(2)), torch.tensor(torch.inf))
UP = "blocks.0.up.weight"
ODD = {
    "not a dict": (None, "a state is {"),
    "empty": ({}, "full_state() returns it, not {}"),
    "no optimizer": (spoiled("optimizer", value=None), "a state is {"),
    "no model": (spoiled("model", value=None), "a state is {"),
    "a second layer": (
        spoiled("model", "blocks.1.up.weight", value=torch.ones(4, 3)),
        "the state has blocks.1.up.weight, and this model has not: was another model saved? The "
        "nearest name is blocks.0.up.weight",
    ),
    "a number as name": (spoiled("model", 7, value=torch.ones(1)), "the state has 7, and this"),
    "moments of another": (
        spoiled("optimizer", "blocks.1.up.weight", value={}),
        "the state's optimizer has blocks.1.up.weight, and this model has not",
    ),
    "a name is missing": (spoiled("model", UP, value=None), f"the state has no {UP} (4, 3): was"),
    "another shape": (
        spoiled("model", UP, value=torch.ones(3, 4)),
        f"{UP} is (3, 4) in the state, and (4, 3) in this model",
    ),
    "a list": (spoiled("model", "scale", value=[1.0]), "scale is a list in the state, and () in"),
    "moments of another shape": (
        spoiled("optimizer", UP, "exp_avg", value=torch.ones(4)),
        f"exp_avg of {UP} is (4,) in the state, and (4, 3) in this model",
    ),
    "NaN": (spoiled("model", UP, value=NAN), f"{UP} has NaN or infinite numbers"),
    "one infinite": (spoiled("model", UP, value=LAST_NAN), f"{UP} has NaN or infinite numbers"),
    "NaN in a moment": (
        spoiled("optimizer", UP, "exp_avg", value=NAN),
        f"exp_avg of {UP} has NaN or infinite numbers",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_state_that_does_not_fit(case):
    given, words = ODD[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        accept(given, SHAPES)


def test_a_state_that_fits():
    accept(state(), SHAPES)
    accept({"model": state()["model"], "optimizer": {}, "precision": {"scale": 2.0}}, SHAPES)
