"""Every parameter belongs to exactly one unit, tied or not."""

import pytest
import torch
from torch import nn

from helpers.models.gpt import GPTConfig
from helpers.parallel.units import Apart, units


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_gpt_is_its_ends_and_its_blocks(tied, positions):
    config = GPTConfig(layers=2, tied=tied, positions=positions)
    model = config.build(device="meta")
    found = units(model)
    learned = ["positions"] if positions == "learned" else []
    ends = ["norm"] if tied else ["norm", "head"]  # a tied head has the embedding's matrix
    assert [u.name for u in found] == ["embedding", *learned, "blocks.0", "blocks.1", *ends]
    names = [name for unit in found for name in unit.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    for unit in found:
        assert model.get_submodule(unit.name) is unit.module
        for name, p in unit.parameters.items():
            assert model.get_parameter(name) is p


def test_a_stage_has_its_blocks_under_their_own_numbers():
    stage = GPTConfig(layers=4).build(device="meta", blocks=[2, 3], first=False)
    assert [unit.name for unit in units(stage)] == ["blocks.2", "blocks.3", "norm", "head"]


def test_a_parameter_of_the_model_itself_is_in_no_unit():
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="parameters in no child of the model: scale"):
        units(model)


def test_models_that_are_apart_have_units_of_their_own():
    stages = {"0": {"last": False, "blocks": [0]}, "3": {"first": False, "blocks": [3]}}
    config = GPTConfig(layers=4)
    model = Apart({name: config.build(device="meta", **own) for name, own in stages.items()})
    found = units(model)
    assert [u.name for u in found] == [
        "0.embedding",
        "0.blocks.0",
        "3.blocks.3",
        "3.norm",
        "3.head",
    ]
    for unit in found:
        assert model.get_submodule(unit.name) is unit.module


def test_members_of_lists_and_dicts_are_units_and_a_module_without_parameters_is_none():
    model = nn.Module()
    model.first = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    model.second = nn.ModuleList([nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))])
    model.third = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Dropout()})
    names = ["first.0", "first.2", "second.0", "second.1.0", "third.a"]
    assert [unit.name for unit in units(model)] == names
    assert list(units(model)[3].parameters) == ["second.1.0.weight", "second.1.0.bias"]
