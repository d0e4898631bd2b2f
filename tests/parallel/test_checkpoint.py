"""A checkpoint of any strategy continues in any other, on any number of ranks, as one process does.

Each strategy restores what the one before it saved, makes a step, and saves. Within 1e-12 in
float64.
"""

import math
import re
import warnings
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_map

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.libraries.data_parallel import TorchDataParallel, TorchZeroRedundancy
from helpers.parallel.libraries.deepspeed_zero import DeepSpeedZero
from helpers.parallel.libraries.dtensor import DTensorParallel
from helpers.parallel.libraries.fsdp1 import Fsdp1
from helpers.parallel.libraries.fully_shard import FullyShard
from helpers.parallel.offload.host import OnHost
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.single import Single
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import one_f_one_b
from helpers.precision.scaling import LossScale
from helpers.runtime.launch import launch
from tests.parallel.beside import apart, flat

CONFIG = GPTConfig(vocab=33, context=12, width=24, layers=2, heads=4)
SCALED = Mixed(torch.float64, scale=LossScale(scale=2.0, interval=2))
THREE = Layout(pp=2, tp=2)
CHAIN = [  # strategy, its mesh, the loss scale after its step; ranks of one number in a row
    (Recipe(precision=SCALED), None, 2),
    (Recipe(owner=Zero3, precision=SCALED), {"dp": 3}, 4),  # two good steps, one before the load
    (Recipe(layout=THREE, schedule=one_f_one_b, precision=OnHost(SCALED)), {"pp": 2, "tp": 2}, 4),
    (Recipe(owner=Zero1, precision=OnHost(SCALED)), {"dp": 2}, 8),
    (Recipe(owner=Zero2), {"dp": 2}, 1),
    (Fsdp1, {"dp": 2}, None),
    (TorchZeroRedundancy, {"dp": 2}, None),
    (DTensorParallel, {"tp": 2}, None),
    (FullyShard, {"dp": 3}, None),
    (TorchDataParallel, {"dp": 3}, None),
    (Recipe(precision=SCALED), None, 2),
]
DEEPSPEED = [(partial(DeepSpeedZero, stage=stage), {"dp": 2}, None) for stage in (0, 1, 3)]
CHAINS = {
    "float64": (CHAIN, torch.float64, 1e-12),
    "DeepSpeed": ([(Recipe(), None, 1), *DEEPSPEED, (Recipe(), None, 1)], torch.float32, 2e-4),
}


def went_on(worker, links, folder, dtype):
    """For each link: restore the checkpoint before, make a step, save.

    Args:
        links: the step, the strategy, its mesh.

    Returns:
        For each link, what was saved with the checkpoint before, and the state.
    """
    torch.set_num_threads(1)
    found = []
    for k, strategy, sizes in links:
        mesh = make_mesh(Layout(**sizes)) if sizes else None
        trained = strategy(CONFIG, k, mesh, dtype=dtype)  # other first values
        progress = trained.restore(f"{folder}/{k - 1}") if k else {}
        batch = random_batch(k, 5, CONFIG.context, CONFIG.vocab)
        trained.step(batch.shard(trained.data_rank, trained.data_size))
        trained.save(f"{folder}/{k}", updates=k + 1, place=5 * (k + 1))
        scale = trained.precision.loss_scale if hasattr(trained, "precision") else None
        found.append((progress, scale, trained.full_state()))
        trained.close()
    return found


def ranks_of(sizes) -> int:
    return Layout(**sizes).world_size if sizes else 1


def on_ranks(fn, ranks: int, **given) -> list:
    """What `fn` returns on each rank; a single one is this process."""
    if ranks == 1:
        return [fn(SimpleNamespace(rank=0, world_size=1), **given)]
    return list(launch(fn, ranks, device="cpu", **given))


@pytest.mark.parametrize(("chain", "dtype", "near"), CHAINS.values(), ids=CHAINS)
def test_each_strategy_goes_on_from_the_checkpoint_of_another(tmp_path, chain, dtype, near):
    one, given = Single(CONFIG, 0, dtype=dtype), {"folder": str(tmp_path), "dtype": dtype}
    links = [(k, strategy, sizes) for k, (strategy, sizes, _) in enumerate(chain)]
    for ranks, some in groupby(links, lambda link: ranks_of(link[2])):
        some = list(some)
        runs = on_ranks(went_on, ranks, links=some, **given)
        for (k, *_), *every in zip(some, *runs, strict=True):
            one.step(random_batch(k, 5, CONFIG.context, CONFIG.vocab))
            wanted = one.full_state()
            for progress, scale, state in every:
                assert progress == ({"updates": k, "place": 5 * k} if k else {})
                assert scale == chain[k][2], k
                assert apart(state["model"], wanted["model"]) < near, k
                assert apart(flat(state["optimizer"]), flat(wanted["optimizer"])) < near, k


DEEPER = replace(CONFIG, layers=3)
EVERY = {  # strategy, its mesh
    "single": (Recipe(), None),
    "stages": (Recipe(layout=Layout(pp=2), schedule=one_f_one_b), {"pp": 2}),
    "ZeRO 3": (Recipe(owner=Zero3), {"dp": 2}),
    "FullyShard": (FullyShard, {"dp": 2}),
    "FSDP1": (Fsdp1, {"dp": 2}),
    "ZeroRedundancy": (TorchZeroRedundancy, {"dp": 2}),
    "DTensor": (DTensorParallel, {"tp": 2}),
}


def said(act) -> str:
    """What an action raises, or warns of; "" for neither."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            act()
        except ValueError as error:
            return str(error)
    return "".join(str(w.message) for w in caught if "start anew" in str(w.message))


def loads(worker, folder):
    """What each load says, of the strategies that have so many ranks."""
    return {
        name: loads_of(worker, *case, folder)
        for name, case in EVERY.items()
        if ranks_of(case[1]) == worker.world_size
    }


def loads_of(worker, strategy, sizes, folder):
    """Load what does not fit, on the last rank alone where that can be."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(**sizes)) if sizes else None
    trained = strategy(CONFIG, 0, mesh)
    batch = random_batch(0, 4, CONFIG.context, CONFIG.vocab)
    batch = batch.shard(trained.data_rank, trained.data_size)
    trained.step(batch)
    good = trained.full_state()
    deeper = Single(DEEPER, 0).full_state()
    name = next(name for name in good["model"] if "blocks.0" in name)
    double = lambda t: t.double() if t.dim() else t  # noqa: E731
    bad = {**good["model"], name: good["model"][name].clone()}
    bad[name].view(-1)[-1] = math.nan
    sgd = {name: {"momentum_buffer": value} for name, value in good["model"].items()}
    last = worker.rank == worker.world_size - 1
    found = {
        "a third layer": said(lambda: trained.load(deeper if last else good)),
        "NaN": said(lambda: trained.load({**good, "model": bad} if last else good)),
        "nothing": said(lambda: trained.load({} if last else good)),
        "another rule": said(lambda: trained.load({**good, "optimizer": sgd} if last else good)),
    }
    for odd in ("deeper", "nan", "sgd"):
        found[f"checkpoint: {odd}"] = said(lambda odd=odd: trained.restore(f"{folder}/{odd}"))
    unchanged = apart(trained.full_state()["model"], good["model"])
    found["fits"] = said(lambda: trained.load(tree_map(double, good)))
    trained.step(batch)  # in its own dtype
    found["anew"] = said(lambda: trained.load({**good, "optimizer": {}}))
    found["checkpoint: anew"] = said(lambda: trained.restore(f"{folder}/new"))
    trained.step(batch)
    trained.close()
    if strategy is TorchZeroRedundancy:  # its optimizer has PyTorch's SGD inside
        plain = strategy(CONFIG, 0, mesh, optimizer=OptimizerConfig(rule="sgd", momentum=0.0))
        assert said(lambda: plain.load({**good, "optimizer": {}})) == ""
    return found, unchanged


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Number of ranks -> for each rank, what its loads say."""
    folder = tmp_path_factory.mktemp("checkpoints")
    Single(DEEPER, 0).save(folder / "deeper")
    other = Single(CONFIG, 0, optimizer=OptimizerConfig(rule="sgd"))
    other.step(random_batch(0, 4, CONFIG.context, CONFIG.vocab))
    other.save(folder / "sgd")
    one = Single(CONFIG, 0)
    one.save(folder / "new")
    with torch.no_grad():
        one.parameters["blocks.0.attention.out.weight"][-1, -1] = math.nan
    one.save(folder / "nan")
    return {ranks: on_ranks(loads, ranks, folder=str(folder)) for ranks in (1, 2)}


@pytest.mark.parametrize("case", EVERY)
def test_what_does_not_fit_is_refused_on_every_rank(case, loaded):
    """And is said: training would go on, from a part of the state, from NaN, or without moments."""
    for rank, run in enumerate(loaded[ranks_of(EVERY[case][1])]):
        found, unchanged = run[case]
        assert "has blocks.2." in found["a third layer"]
        assert re.search(r"nearest name is blocks\.[01]\.", found["a third layer"])
        assert "has NaN or infinite numbers" in found["NaN"]
        assert "a state is {" in found["nothing"]
        assert "nearest name is blocks." in found["checkpoint: deeper"]
        assert "attention.out.weight has NaN or infinite numbers" in found["checkpoint: nan"]
        for how in ("another rule", "checkpoint: sgd"):
            assert "has momentum_buffer, and the rule 'adamw' needs exp_avg, exp_" in found[how]
        assert unchanged == 0
        assert found["fits"] == ""
        for how in ("anew", "checkpoint: anew"):
            assert ("moments and step count start anew" in found[how]) == (rank == 0)


def test_plain_sgd_has_no_moments_to_miss(tmp_path):
    for momentum, words, needs in ((0.0, "", "none"), (0.9, "start anew", "momentum_buffer")):
        one = Single(CONFIG, optimizer=OptimizerConfig(rule="sgd", momentum=momentum))
        state = one.full_state()
        one.save(tmp_path / str(momentum))
        for act in (partial(one.load, state), partial(one.restore, tmp_path / str(momentum))):
            told = said(act)
            assert words in told if words else not told
        state["optimizer"] = {name: {"exp_avg": value} for name, value in state["model"].items()}
        assert f"has exp_avg, and the rule 'sgd' needs {needs}." in said(partial(one.load, state))
