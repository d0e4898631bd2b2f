"""Training state moves from any layout to any other, and stays that of one process."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runtime.failure import WorkerError
from helpers.state.all_parts import AllParts
from helpers.state.decay import decays
from helpers.state.full_state import full_optimizer, full_state, is_local, moments_and_counts
from helpers.state.load import load, load_optimizer
from helpers.state.part import Part
from helpers.state.slicing import take
from tests.state.cases import everyone, layouts, models, numbers

RULES = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
}


def grad(shape, step: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


class Trained:
    """This rank's parts with an optimizer. The gradients are slices of the plain gradients.

    Every update acts number by number, so the results equal one process's, bit for bit.
    """

    def __init__(self, parts: AllParts, rank: int, rule: str, plain):
        self.parts, self.own = parts, parts.ranks[rank]
        self.local = {
            key: torch.nn.Parameter(take(part, plain[part.name])) for key, part in self.own.items()
        }
        groups = [
            {
                "params": [self.local[k] for k, p in self.own.items() if decays(p) == decay],
                "weight_decay": 0.1 * decay,
            }
            for decay in (True, False)
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = RULES[rule](groups) if groups else None

    def step(self, k: int, frozen: str):
        for key, part in self.own.items():
            if part.name != frozen:
                self.local[key].grad = take(part, grad(part.shape, k))
        if self.optimizer:
            self.optimizer.step()

    def state(self):
        kept = {k: self.optimizer.state[p] for k, p in self.local.items()} if self.local else {}
        return full_state(self.parts, self.local, kept)

    def load(self, state):
        load(self.own, self.local, state["model"])
        for key, slots in load_optimizer(self.own, state["optimizer"]).items():
            self.optimizer.state[self.local[key]] = slots


def equal(one, other) -> bool:
    """Compare nested dicts of tensors and numbers by value, shape and dtype."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and one == other


def moved(worker, ranks, rule, frozen):
    """Train two steps on each layout. After each step the state equals one process's."""
    source, target = (AllParts(side) for side in ranks)
    plain = {name: numbers(shape) for name, shape in source.shapes.items()}
    single = AllParts([{n: Part(name=n, shape=s, holders=[0]) for n, s in source.shapes.items()}])
    twin = Trained(single, 0, rule, plain)
    one = Trained(source, worker.rank, rule, plain)
    for k in range(4):
        if k == 2:
            state = one.state()
            one = Trained(target, worker.rank, rule, {n: t * 0 for n, t in plain.items()})
            one.load(state)
        twin.step(k, frozen)
        one.step(k, frozen)
        state = one.state()
        expected = {
            "model": {name: p.detach() for name, p in twin.local.items()},
            "optimizer": {
                name: dict(twin.optimizer.state[p])
                for name, p in twin.local.items()
                if twin.optimizer.state.get(p)
            },
        }
        assert equal(state, expected), (state, expected)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_trained_on_two_layouts_as_in_one_process(cluster, data):
    one, other = data.draw(layouts(4)), data.draw(layouts(4))
    recipes = data.draw(models(one))
    again = data.draw(models(other, [recipe.shape for recipe in recipes]))
    ranks = [[dict(own) for own in everyone(*s).ranks] for s in ((one, recipes), (other, again))]
    frozen = data.draw(st.sampled_from(["t0", "none"]))
    cluster.run(moved, ranks=ranks, rule=data.draw(st.sampled_from(sorted(RULES))), frozen=frozen)


def kept_on(worker, kept):
    part = Part(name="w", shape=(4,), holders=range(4))
    return full_optimizer(AllParts([{"w": part}] * 4), kept[worker.rank])


def test_counts_keep_their_kind(cluster):
    slots = {
        "step": torch.tensor(3.0),
        "n": 7,
        "mu": torch.tensor(0.1, dtype=torch.float64),
        "none": None,
    }
    for found in cluster.run(kept_on, kept=[{"w": slots}] * 4):
        assert equal(found, {"w": slots})


def under_other_keys(worker):
    """Each rank has a number of w, under a key of its own."""
    parts = AllParts(
        {f"unit {r}": Part(name="w", shape=(4,), flat=(r, r + 1), holders=(r,))} for r in range(4)
    )
    kept = {f"unit {worker.rank}": {"step": 3, "exp_avg": torch.tensor([worker.rank + 1.0])}}
    whole = full_optimizer(parts, kept)["w"]
    assert (whole["step"], whole["exp_avg"].tolist()) == (3, [1, 2, 3, 4])
    return moments_and_counts(parts, {f"unit {worker.rank}": {"step": 3}})


def test_counts_and_moments_are_of_the_plain_name(cluster):
    for moments, counts in cluster.run(under_other_keys):
        assert (moments, counts) == ({}, {"w": {"step": [3, None]}})


def of_a_group(worker):
    """Ranks 1 and 3 of four have a model of their own, half of it on each."""
    group = dist.new_group([1, 3])
    if worker.rank % 2 == 0:
        return None
    parts = AllParts(
        {"w": Part(name="w", shape=(4,), flat=(2 * r, 2 * r + 2), holders=(r,))} for r in range(2)
    )
    half = torch.tensor([1.0, 2.0]) + worker.rank
    kept = {"w": {"exp_avg": -half, "step": torch.tensor(5.0)}}
    found = full_state(parts, {"w": half}, kept, group)
    there = full_state(parts, {"w": half}, kept, group, "meta")
    moved = there["model"]["w"], there["optimizer"]["w"]["exp_avg"]
    assert [tensor.device.type for tensor in moved] == ["meta"] * 2
    slots = found["optimizer"]["w"]
    return found["model"]["w"].tolist(), slots["exp_avg"].tolist(), slots["step"].item()


def test_the_state_of_the_ranks_of_a_group(cluster):
    both = [2.0, 3.0, 4.0, 5.0], [-2.0, -3.0, -4.0, -5.0], 5.0
    assert list(cluster.run(of_a_group)) == [None, both, None, both]


def test_what_is_a_count_and_what_a_moment():
    """Of a parameter without dims, only the name tells them apart."""
    scalar, row = Part(name="s", shape=(), holders=(0,)), Part(name="r", shape=(3,), holders=(0,))
    three, one = torch.ones(3), torch.tensor(1.0)
    assert is_local("exp_avg", one, scalar)
    assert not is_local("step", one, scalar)
    assert is_local("exp_avg", three, row)
    assert not is_local("mu", one, row)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (
            [{"w": {"step": 1}}] * 3 + [{"w": {"step": 2}}],
            "'step' of w is .* on one rank, but .* on another",
        ),
        ([{"w": {"row": torch.zeros(2)}}] * 4, r"'row' has shape \(2,\); it must be one number"),
        ([{"w": {"exp": torch.zeros(4)}}] * 3 + [{}], "some have no tensor: .*None"),
    ],
)
def test_invalid_optimizer_state(cluster, kept, message):
    with pytest.raises(WorkerError, match=message):
        cluster.run(kept_on, kept=kept)
