"""Replicas that drift apart over tp are named by module; what is cut on purpose is not."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.parallel.tensor import transform as transforms
from helpers.parallel.tensor.regions import Whole
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.failure import WorkerError
from helpers.training import drift as drifts
from helpers.training.drift import PASSES, Drift, drift, first_drift, plain_shapes, replicas
from helpers.training.twin import compare, some_batch
from helpers.training.witness import Witness

pytestmark = pytest.mark.usefixtures("kept_ranks")

CONFIG = GPTConfig(vocab=33, context=8, width=16, layers=2, heads=4, dropout=0.2)
PLAIN = partial(tensor_parallel, overlap=False)


def found_in(transform, layout=None, config=CONFIG, **options):
    settings = {"steps": 1, "sequences": 3, "device": "cpu", **options}
    recipe = (
        Recipe(transform=transform, owner=Replicated) if layout else Recipe(transform=transform)
    )
    return drift(recipe, layout=layout or {"tp": 2}, config=config, **settings)


@pytest.mark.parametrize(
    ("transform", "config"),
    [
        (tensor_parallel, CONFIG),
        (partial(sequence_parallel, overlap=False), CONFIG),
        (PLAIN, replace(CONFIG, norm="layer", positions="learned", mlp="gelu", bias=True)),
    ],
    ids=["tensor", "sequence", "GPT-2"],
)
def test_cut_activations_are_no_drift(transform, config):
    assert found_in(transform, config=config, steps=2) is None


def test_replicas_of_data_are_no_drift():
    layout = {"dp": 2, "tp": 2}
    assert found_in(tensor_parallel, layout) is None
    recipe = Recipe(transform=tensor_parallel, owner=Replicated)
    # along dp, the outputs differ: other sequences; what all ranks should share is the rest
    assert drift(recipe, layout=layout, axis="dp", config=CONFIG, steps=1, device="cpu") is None


def test_key_heads_that_ranks_share_get_partial_gradients():
    """The key's output is the same on both ranks; each adds another part of its gradient."""
    config = replace(CONFIG, kv_heads=1)
    assert found_in(PLAIN, config=config, partial_sums=("attention.key", "attention.value")) is None
    seen = found_in(PLAIN, config=config)
    assert (seen.kind, seen.name) == ("backward", "blocks.1.attention.value")


def own_dropout(config, seed, mesh, dtype):
    """After the second block's attention, each rank draws its own mask."""
    placed = tensor_parallel(replace(config, dropout=0.0), seed, mesh, dtype)
    model = placed.model

    def drop(_module, _inputs, output):
        drawn = torch.Generator().manual_seed(mesh.rank)
        return output * (torch.rand(output.shape, generator=drawn) > 0.5)

    model.blocks["1"].attention.register_forward_hook(drop)
    return placed


class NoSum(Whole):
    """g is left out of one layer: its result stays a partial sum."""

    def leave(self, partial):
        return partial


class NoSumBack(Whole):
    """f is left out: the gradient of the layer's input stays a partial sum."""

    def enter(self, x):
        return x


def without(region, where, config, seed, mesh, dtype):
    placed = tensor_parallel(config, seed, mesh, dtype, overlap=False)
    model = placed.model
    module = model.get_submodule(where)
    if isinstance(module, transforms.ColumnParallel):  # shared by all blocks: a new one for this
        parent, _, leaf = where.rpartition(".")
        changed = transforms.ColumnParallel(region(module.region.transport), overlap=False)
        setattr(model.get_submodule(parent), leaf, changed)
    else:
        module.region = region(module.region.transport)
    return placed


def norm_not_summed(config, seed, mesh, dtype):
    """Sequence parallel, but the last norm's gradient stays this rank's own."""
    placed = sequence_parallel(config, seed, mesh, dtype)
    whole = tensor_parallel(config, seed, mesh, dtype).parts
    return replace(placed, parts=placed.parts | {"norm.weight": whole["norm.weight"]})


def own_gradient(config, seed, mesh, dtype):
    """On rank 1 a norm doubles its gradient."""
    placed = tensor_parallel(config, seed, mesh, dtype)
    model = placed.model
    norm = model.blocks["0"].mlp_norm

    def prepare(module, _inputs):
        if not module.weight._post_accumulate_grad_hooks:
            module.weight.register_post_accumulate_grad_hook(double)

    def double(weight):
        weight.grad.mul_(2)

    if mesh.rank == 1:
        norm.register_forward_pre_hook(prepare)
    return placed


MISTAKES = {
    "dropout by rank": (own_dropout, "forward", "blocks.1.attention"),
    "g left out": (partial(without, NoSum, "blocks.0.mlp.down"), "forward", "blocks.0.mlp.down"),
    "f left out": (
        partial(without, NoSumBack, "blocks.1.mlp.fan_out"), "backward", "blocks.1.mlp_norm",
    ),
    "norm's gradient not summed": (norm_not_summed, "gradient", "norm.weight"),
    "a norm of its own": (own_gradient, "gradient", "blocks.0.mlp_norm.weight"),
}  # fmt: skip


def last_digits(config, seed, mesh, dtype):
    """On rank 1 the output of a norm is off by 1e-10 of its size."""
    placed = tensor_parallel(config, seed, mesh, dtype)
    model = placed.model
    if mesh.rank == 1:
        model.norm.register_forward_hook(lambda _module, _inputs, output: output * (1 + 1e-10))
    return placed


def test_digits_beyond_rounding_are_a_drift():
    seen = found_in(last_digits, config=replace(CONFIG, dropout=0.0))
    assert (seen.kind, seen.name) == ("forward", "norm")
    assert 0.9e-10 < seen.off < 1.1e-10


def from_the_second_step(config, seed, mesh, dtype):
    """On rank 1 the output of a norm grows with each call, from the second on."""
    placed = tensor_parallel(config, seed, mesh, dtype)
    model = placed.model
    calls = []

    def grow(_module, _inputs, output):
        calls.append(mesh.rank)
        return output * (1 + 0.1 * mesh.rank * (len(calls) - 1))

    model.norm.register_forward_hook(grow)
    return placed


def test_the_step_is_named_too():
    seen = found_in(from_the_second_step, config=replace(CONFIG, dropout=0.0), steps=2)
    assert (seen.step, seen.kind, seen.name) == (1, "forward", "norm")
    assert seen.off == pytest.approx(0.1)


@pytest.mark.parametrize("kind", PASSES)
def test_a_drift_in_words(kind):
    found = str(Drift(step=3, axis="tp", ranks=(1, 2), kind=kind, name="n", off=0.25))
    assert found.startswith("step 3, ranks 1 and 2 along tp: the ")
    assert ", by 0.25 of its size." in found
    assert ("sum over tp missing" in found) == (kind in ("forward", "backward", "gradient"))


@pytest.mark.parametrize(("transform", "kind", "name"), MISTAKES.values(), ids=MISTAKES)
def test_a_planted_drift_is_named(transform, kind, name):
    seen = found_in(transform, config=replace(CONFIG, dropout=0.0))
    assert (seen.step, seen.axis, seen.ranks, seen.kind, seen.name) == (0, "tp", (0, 1), kind, name)
    assert seen.off > 1e-6
    assert name in str(seen)
    assert "ranks 0 and 1 along tp" in str(seen)


@pytest.mark.parametrize(
    ("transform", "kind", "name", "said"),
    [
        (own_dropout, "forward", "blocks.1.attention", "drift apart: along tp"),
        (MISTAKES["f left out"][0], "backward", "blocks.1.mlp_norm", "Is a sum over tp missing"),
    ],
    ids=["dropout by rank", "f left out"],
)
def test_beside_a_twin_the_guess_names_the_drift(transform, kind, name, said):
    config = replace(CONFIG, dropout=0.0)
    comparison = compare(
        Recipe(transform=transform), workers=2, layout={"tp": 2}, config=config, steps=1,
        device="cpu", sequences=3, locate=True,
    )  # fmt: skip
    where = comparison.location
    assert (where.kind, where.name) == (kind, name), where
    assert said in where.guess


def test_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match="the axes tp, not cp"):
        drift(Recipe(transform=tensor_parallel), layout={"tp": 2}, axis="cp", device="cpu")
    with pytest.raises(WorkerError, match="3 query heads do not divide"):
        drift(
            Recipe(transform=tensor_parallel),
            layout={"tp": 2},
            config=GPTConfig(width=24, heads=3),
            device="cpu",
        )


def test_shapes_of_the_plain_model():
    shapes = plain_shapes(CONFIG, some_batch(0, 3, CONFIG, 0))
    assert shapes["blocks.0.mlp"] == (8, 16)
    assert shapes["head"] == (8, 33)
    assert shapes["blocks.1.attention.core"] == (4, 8, 4)
    routed = replace(CONFIG, experts=ExpertSettings(count=2))
    assert plain_shapes(routed, some_batch(0, 3, CONFIG, 0))["blocks.0.mlp"] == (8, 16)


def of(**changes):
    seen = Witness(torch.arange(2), loss=1.0)
    for name, value in changes.items():
        setattr(seen, name, value)
    return seen


def test_the_first_pass_and_module_count():
    layout, one = Layout(tp=2), torch.ones(2, 4, 6)
    shapes = {"a": (4, 6), "b": (4, 6)}
    same = {"forward": {"a": one, "b": one}, "before": {"w": one}, "parameters": {"w": one}}
    look = partial(first_drift, shapes=shapes, layout=layout, axis="tp", near=1e-12)
    assert look([of(**same), of(**same)]) is None
    later = same | {"forward": {"a": one, "b": 2 * one}, "parameters": {"w": 3 * one}}
    found = look([of(**same), of(**later)])
    assert found == Drift(step=0, axis="tp", ranks=(0, 1), kind="forward", name="b", off=1.0)
    assert look([of(**same), of(**same | {"parameters": {"w": 3 * one}})]).kind == "update"
    assert look([of(**same), of(**same, loss=1.5)]).kind == "loss"
    assert look([of(**same), of(**same | {"before": {"w": one * float("nan")}})]).kind == "start"
    # a backward begins at the end of the model; the names are in its order
    last = {"gradients": {"a": one, "b": one}, "backward": {"b": one, "a": one}}
    assert look([of(**last), of(**last | {"gradients": {"a": 2 * one, "b": 2 * one}})]).name == "b"
    assert look([of(**last), of(**last | {"backward": {"b": 2 * one, "a": one * 2}})]).name == "b"
    assert look([of(**last), of(backward={"a": one})]) is None  # another rank has the others
    both = of(backward={"x.a": 2 * one, "a": one}, gradients={"x.a": 2 * one})
    for kind in ("backward", "gradients"):
        theirs = of(**{kind: {"x.a": one, "a": one}})
        found = look([both, theirs], shapes=shapes | {"x.a": (4, 6)}, partial_sums=("x.a",))
        assert (found is None) == (kind == "backward")
    third = [of(**same), of(**same), of(**same | {"parameters": {"w": 3 * one}})]
    found = first_drift(third, shapes, Layout(tp=3), "tp", 1e-12)
    assert (found.ranks, found.kind) == ((0, 2), "update")
    # cut by tokens: not of the plain shape
    cut = [of(forward={"a": k * torch.ones(2, 2, 6)}) for k in range(2)]
    assert look(cut) is None
    assert list(replicas("forward", *cut, shapes)) == []


def before(value):
    return Witness(torch.arange(2), before={"w": torch.full((3,), value, dtype=torch.float64)})


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.01)]
)
def test_settings_reach_the_ranks_and_a_dtype_has_its_own_bound(monkeypatch, dtype, near):
    asked, off = [], 0.9

    def launched(fn, workers, *, device, **given):
        asked.append((fn, workers, device, given))
        last = [before(1.0), before(1.0 + off * near)]  # the last rank departs, in the last step
        return [*[[before(1.0)] * 2] * 3, last]

    monkeypatch.setattr(drifts, "launch", launched)
    rule, layout = OptimizerConfig(lr=0.25), {"dp": 2, "tp": 2}
    settings = {
        "layout": layout, "steps": 2, "config": CONFIG, "sequences": 5, "dtype": dtype,
        "optimizer": rule, "seed": 3, "device": "cpu",
    }  # fmt: skip
    assert drift(Single, extra=1, **settings) is None
    off = 1.1
    found = drift(Single, **settings)
    assert (found.step, found.ranks, found.kind, found.name) == (1, (2, 3), "start", "w")
    assert drift(Single, axis="dp", **settings).ranks == (1, 3)
    fn, workers, device, given = asked[0]
    assert (fn, workers, device) == (drifts.see, 4, "cpu")
    batches = given.pop("batches")
    assert torch.equal(batches(1).tokens, some_batch(3, 5, CONFIG, 1).tokens)
    assert given == {
        "strategy": Single, "layout": layout, "options": {"extra": 1}, "config": CONFIG, "seed": 3,
        "dtype": dtype, "optimizer": rule, "steps": 2, "looked_at": range(2),
    }  # fmt: skip
