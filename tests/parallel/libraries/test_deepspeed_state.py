"""The state of a DeepSpeed engine: what is loaded is there, whole, and the next step goes by it."""

from dataclasses import dataclass, replace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.deepspeed_state import CLIPPED, is_slot, shard_of
from helpers.parallel.libraries.deepspeed_zero import DeepSpeedZero
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.launch import launch
from helpers.training.differences import farthest

FROZEN = "blocks.0.mlp.gate.weight"
RULE = OptimizerConfig(clip=0.1)
SLOTS = {"exp_avg", "exp_avg_sq", "step"}
BATCHES = [random_batch(k, 4, 8, 33) for k in range(3)]
CASES = {
    **{f"stage {k}": {"zero_optimization": {"stage": k}} for k in range(4)},
    **{
        f"stage {k} in bf16": {"zero_optimization": {"stage": k}, "bf16": {"enabled": True}}
        for k in (1, 3)
    },
}


@dataclass(frozen=True)
class PartlyFrozen(GPTConfig):
    def build(self, *arguments, **options):
        model = super().build(*arguments, **options)
        model.get_parameter(FROZEN).requires_grad_(False)
        return model


TINY = PartlyFrozen(vocab=33, context=8, width=10, layers=1, heads=1)


def drawn(state: dict) -> dict:
    """A state in the shapes of this one, of numbers that bf16 does not have, except frozen ones.

    The second moments are large, so the next update hardly depends on rounding.
    """
    made = torch.Generator().manual_seed(0)
    draw = lambda like: torch.randn(like.shape, generator=made)  # noqa: E731
    model = {name: draw(value) / 4 for name, value in state["model"].items()}
    return {
        "model": model | {FROZEN: model[FROZEN].bfloat16().float()},
        "optimizer": {
            name: {"exp_avg": draw(value), "exp_avg_sq": 1 + draw(value).square(),
                   "step": torch.tensor(7.0)}
            for name, value in state["model"].items() if name != FROZEN
        },
    }  # fmt: skip


def flat(state: dict) -> dict[str, torch.Tensor]:
    slots = {f"{n}.{k}": v for n, own in state["optimizer"].items() for k, v in own.items()}
    return {name: value.double() for name, value in (state["model"] | slots).items()}


def tensors(state: dict) -> list[torch.Tensor]:
    return [*state["model"].values(), *(v for own in state["optimizer"].values()
                                        for v in own.values())]  # fmt: skip


def inside(ours) -> dict[str, torch.Tensor]:
    """The parameters that the model computes with, whole in stages 0 to 2, else this rank's."""
    return {
        name: (p.ds_tensor if ours.stage == 3 else p).detach().double().clone()
        for name, p in ours.parameters.items()
    }


def shares(ours, values) -> dict[str, torch.Tensor]:
    """What `inside` should be: in stage 3, this rank's half of each padded row."""
    dtype, found = next(iter(ours.parameters.values())).dtype, {}
    for name, value in values.items():
        value = value.to(dtype).double()
        if ours.stage == 3:
            row = torch.nn.functional.pad(value.flatten(), (0, value.numel() % 2))
            value = row.chunk(2)[ours.data_rank]
        found[name] = value
    return found


def followed(mesh, settings) -> dict:
    ours = DeepSpeedZero(TINY, 0, mesh, settings=settings, optimizer=RULE)
    one = Single(TINY, 0, optimizer=RULE)
    own = [replace(b, step=k).shard(ours.data_rank, 2) for k, b in enumerate(BATCHES)]
    fresh, state = ours.full_state(), drawn(one.full_state())
    found = {"fresh": fresh["optimizer"], "start": apart(fresh, one.full_state())}
    ours.step(own[0])  # so there is something to replace
    for again in (False, True):
        ours.load(state)
        one.load(state)
        loaded = ours.full_state()
        found["loaded", again] = apart(loaded, state)
        found["inside", again] = farthest(inside(ours), shares(ours, state["model"]))[0]
        ours.step(own[1])
        one.step(BATCHES[1])
    found["copies"] = apart(loaded, state)  # what was given out has not followed the step
    found["norm"] = float(ours.norm())
    for value in [*ours.full_gradients().values(), *tensors(ours.full_state())]:
        value.zero_()  # copies
    gradients, end = ours.full_gradients(), ours.full_state()
    found["left"] = [name for name, p in ours.parameters.items() if CLIPPED in links(p)]
    given_out = {name: gradient.clone() for name, gradient in gradients.items()}
    found["slots"] = {frozenset(slots) for slots in end["optimizer"].values()}
    found["trained"] = {frozenset(gradients), frozenset(end["optimizer"])}
    found["counts"] = {float(slots["step"]) for slots in end["optimizer"].values()}
    found["gradients"] = farthest(gradients, one.full_gradients())[0]
    found["largest"] = max(float(g.abs().max()) for g in gradients.values())
    found["stepped"] = apart(end, one.full_state())
    found["moved"] = farthest(end["model"], state["model"])[0]
    ours.load(fresh)
    empty = ours.full_state()
    found["emptied"], found["again"] = empty["optimizer"], apart(empty, fresh)
    ours.step(own[2])
    found["copies"] += farthest(gradients, given_out)[0]
    slots, gradients = ours.full_state()["optimizer"], ours.full_gradients()
    found["new counts"] = {float(own["step"]) for own in slots.values()}
    found["first moments"] = farthest(
        {name: 10 * own["exp_avg"] for name, own in slots.items()}, gradients
    )[0]
    found["second moments"] = farthest(
        {name: 20 * own["exp_avg_sq"] for name, own in slots.items()},
        {name: gradient.square() for name, gradient in gradients.items()},
    )[0]
    ours.close()
    return found


def links(p) -> dict:
    """The optimizer's tensors that DeepSpeed knows of a parameter of stages 1 and 2."""
    return getattr(getattr(p, "_hp_mapping", None), "optim_fragment", {})


def apart(ours, theirs) -> float:
    return farthest(flat(ours), flat(theirs))[0]


def everything(worker) -> dict:
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    return {name: followed(mesh, settings) for name, settings in CASES.items()}


@pytest.fixture(scope="module")
def runs():
    return launch(everything, 2, device="cpu", timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_state_replaces_all_and_the_next_step_goes_by_it(runs, case):
    names = frozenset(dict(TINY.build().named_parameters())) - {FROZEN}
    low = "bf16" in case
    for found in runs.column(case):
        assert found["fresh"] == {}
        assert found["start"] <= (0.01 if low else 0)  # of the first values in 16 bits
        for again in (False, True):
            assert found["loaded", again] == 0  # the master copies have all bits
            assert found["inside", again] == 0
        assert found["copies"] == 0
        assert found["left"] == []  # the gradients' memory is free
        assert found["slots"] == {frozenset(SLOTS)}
        assert found["trained"] == {names}
        assert found["counts"] == {8}
        assert found["norm"] > 0.15  # so they are clipped
        assert found["gradients"] < (1e-3 if low else 1e-7) < found["largest"]
        assert found["stepped"] < (2e-4 if low else 2e-6) < found["moved"]


@pytest.mark.parametrize("case", CASES)
def test_a_state_without_moments_leaves_none_behind(runs, case):
    for found in runs.column(case):
        assert found["emptied"] == {}
        assert found["again"] == 0
        assert found["new counts"] == {1}
        assert found["first moments"] < 1e-6
        assert found["second moments"] < 1e-6


def test_a_rank_s_shard_is_its_piece_of_the_padded_row():
    value = torch.arange(1.0, 6.0).view(1, 5)
    pieces = [shard_of(value, 2, rank).tolist() for rank in range(4)]
    assert pieces == [[1, 2], [3, 4], [5, 0], [0, 0]]
    assert shard_of(value.double(), 7, 0).dtype == torch.float64


def test_a_slot_has_the_parameter_s_shape_and_a_count_has_none():
    assert is_slot(torch.zeros(1))
    assert not is_slot(torch.tensor(3.0))
    assert not is_slot(3)
