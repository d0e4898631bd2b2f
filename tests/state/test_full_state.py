"""Training state moves from any layout to any other, and stays that of one process."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.comm.mesh import Layout, make_mesh
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state.all_parts import AllParts
from helpers.state.full_state import (
    full,
    full_gradients,
    full_optimizer,
    full_state,
    is_local,
    refuse_pending,
)
from helpers.state.part import Part, decays
from helpers.state.pending import complete, global_norm, make_groups
from helpers.state.placing import cut, pending, whole
from helpers.state.slicing import load, load_optimizer, take
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


@settings(deadline=None, max_examples=15)
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
    gradient = full_gradients(parts, {"w": half}, group, "meta")["w"]
    moved = there["model"]["w"], there["optimizer"]["w"]["exp_avg"], gradient
    assert [tensor.device.type for tensor in moved] == ["meta"] * 3
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


def test_frozen_tensors_have_no_gradient(cluster):
    def gradients(worker):
        parts = AllParts(
            [{n: Part(name=n, shape=(2,), holders=range(4)) for n in ("frozen", "w")}] * 4
        )
        return full_gradients(parts, {"frozen": None, "w": torch.ones(2)})

    for found in cluster.run(gradients):
        assert list(found) == ["w"]
        assert found["w"].tolist() == [1, 1]


def test_drifted_replicas_keep_their_own_numbers(cluster):
    def drift(worker):
        parts = AllParts([{"w": Part(name="w", shape=(2,), holders=range(4))}] * 4)
        return full(parts, {"w": torch.full((2,), float(worker.rank))})["w"].tolist()

    assert list(cluster.run(drift)) == [[r, r] for r in range(4)]


def test_a_partial_sum_of_any_rank_and_tensor_is_refused():
    whole_one = Part(name="a", shape=(2,), holders=range(1))
    partial = Part(name="b", shape=(2,), holders=(1, 2), pending=[(1, 2)])
    own = {"b": partial, "c": Part(name="c", shape=(1,), holders=range(1, 3))}
    parts = AllParts([{"a": whole_one}, own, own])
    with pytest.raises(ValueError, match=r"the gradient of b \(2,\).* is still a partial sum"):
        refuse_pending(parts)
    refuse_pending(parts.completed)


@pytest.mark.gpu
def test_tensors_of_a_gpu_over_gloo():
    """Gloo sends the numbers of GPUs through the CPU."""
    if torch.cuda.device_count() < 4:
        pytest.skip("needs four CUDA devices")

    def there(worker):
        mesh = make_mesh(Layout(dp=2, tp=2))
        own = {"w": pending(mesh, cut(mesh, whole(mesh, "w", (5, 3)), 0, "tp"), "dp")}
        parts = AllParts.exchanged(own)
        plain = numbers((5, 3), torch.bfloat16).cuda()
        groups = make_groups(mesh, parts)
        done, found = complete(own, {"w": take(own["w"], plain)}, groups, "cuda")
        whole_again = full(parts.completed, found, device="cuda")["w"]
        assert torch.equal(whole_again, plain * 2)
        assert done["w"].pending == ()
        norm = global_norm(parts.completed, found)
        assert norm.is_cuda
        return norm.item()

    norms = list(launch(there, 4, device="cuda"))
    assert norms == [pytest.approx(2 * numbers((5, 3)).norm().item(), rel=1e-6)] * 4
