"""An optimizer whose state is in files equals one process; its memory is a few buffers."""

import os
import shutil
import tempfile
from collections import Counter
from itertools import cycle

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.data.batch import random_batch
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.disk import on_disk
from helpers.parallel.offload.host import OnHost
from helpers.parallel.offload.state import StateOnDisk, blocks_of, host_adamw
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.owners.local import Local
from helpers.parallel.precision import Mixed, Plain
from helpers.parallel.trainer import Recipe
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage2 import Zero2
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.schedules import one_f_one_b
from helpers.precision.scaling import LossScale
from helpers.runtime.plain import encode
from helpers.state.increments import Increments
from tests.parallel.beside import GPT2, ODD, Case, apart, flat, frozen, hold
from tests.parallel.experts import ExpertConfig, expert_parallel

pytestmark = pytest.mark.filterwarnings("ignore:ZeRO stage")
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()  # waits for no disk
BASE = f"{MEMORY}/offload-{os.getpid()}"
EXACT = Mixed(low=torch.float64)
SCALED = Mixed(torch.float64, scale=LossScale(scale=2.0, interval=2))
OWNERS = {"pending": Local, "DDP": Replicated, "1": Zero1, "2": Zero2, "3": Zero3}


def in_new_files(recipe: Recipe, owner, block=4096, buffers=3):
    """A strategy: the recipe with `owner` on disk, in a folder that is new for each Trainer."""

    def make(config, seed, mesh, **options):
        os.makedirs(BASE, exist_ok=True)
        folder = tempfile.mkdtemp(dir=BASE)
        seams = {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}
        where = {"folder": folder, "block": block, "buffers": buffers}
        anew = Recipe(**{**seams, "owner": on_disk(owner, **where)})
        return anew(config, seed, mesh, **options)

    make.layout = recipe.layout
    return make


def stored(owner, config=ODD, layout=None, *, block=4096, buffers=3, recipe=None, **rest):
    seams = {name: rest.pop(name) for name in ("precision", "transform") if name in rest}
    recipe = recipe or Recipe(**seams)
    return Case(in_new_files(recipe, owner, block, buffers), config, layout, **rest)


PRECISIONS = cycle((Plain(), EXACT, OnHost(), OnHost(SCALED), SCALED))
CASES = {
    "one process": stored(Local, GPT2, {"dp": 1}, micro_batches=2),
    **{f"{name}, {n} ranks": stored(o, GPT2, {"dp": n}, sequences=7, micro_batches=2,
                                    precision=next(PRECISIONS), loads=Recipe())
       for (name, o), n in zip(OWNERS.items(), (2, 3, 2, 3, 2), strict=True)},
    "one buffer": stored(Zero1, buffers=1),
    "one block": stored(Zero2, block=2**20, buffers=5),
    "from memory to files": Case(Recipe(owner=Zero3), loads=in_new_files(Recipe(), Zero1)),
    "half frozen": stored(Zero3, GPT2, transform=frozen("attention", "norm"), precision=EXACT,
                          alone=Recipe(transform=frozen("attention", "norm"))),
    "experts": stored(Zero1, ExpertConfig(experts=2), sequences=8, transform=expert_parallel),
    "a pipeline": stored(Zero1, ODD, recipe=Recipe(layout=Layout(pp=2, dp=2), schedule=one_f_one_b),
                         micro_batches=2),
    "not clipped": stored(Zero3, optimizer=OptimizerConfig(clip=None, weight_decay=0.3)),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def no_file_stays():
    yield
    shutil.rmtree(BASE, ignore_errors=True)


BY_RANKS = dict(sorted(CASES.items(), key=lambda item: item[1].ranks))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


def trained(owner, precision=None, steps=2, **options):
    made = Recipe(owner=owner, precision=precision or Plain())(ODD, 3, **options)
    for k in range(steps):
        made.step(random_batch(k, 4, ODD.context, ODD.vocab))
    return made


def test_memory_has_the_buffers_and_the_disk_has_the_rest(tmp_path):
    """Two versions of parameters, m and v. The master copies are there for an update alone."""
    ours = trained(on_disk(folder=tmp_path, block=8192, buffers=2), Mixed(), dtype=torch.float32)
    twin = trained(Local, Mixed(), dtype=torch.float32)
    numbers = sum(p.numel() for p in ours.parameters.values())
    blocks = -(-numbers // (8192 // 12))
    disk = {("optimizer", "disk"): 2 * blocks * 8192, ("buffers", "cpu"): 2 * 8192}
    kept = {kind: n for kind, n in twin.held().items() if kind[0] in ("parameters", "gradients")}
    assert ours.held() == kept | disk
    assert sum(file.stat().st_size for file in tmp_path.glob("*.state")) == 2 * blocks * 8192
    stream = ours.owner.disk.stream  # a first version, and two updates, of which each reads too
    assert (stream.read, stream.written) == (2 * blocks * 8192, 3 * blocks * 8192)
    passed = Counter((span.lane, span.kind) for span in stream.trace.spans)
    kinds = {"read": "communication", "update": "optimizer", "write": "communication"}
    assert passed == dict.fromkeys(kinds.items(), blocks)
    assert "update, " in stream.timeline().alt
    found = ours.full_state()
    assert ours.held()["master copies", "cpu"] == 4 * numbers
    assert apart(flat(found["optimizer"]), flat(twin.full_state()["optimizer"])) < 1e-6
    ours.step(random_batch(2, 4, ODD.context, ODD.vocab))
    assert ("master copies", "cpu") not in ours.held()
    ours.close()


@pytest.mark.parametrize("precision", [Plain(), Mixed(torch.float64)])
def test_a_checkpoint_goes_in_and_out(tmp_path, precision):
    files = lambda name: on_disk(folder=tmp_path / name, block=4096)  # noqa: E731
    ours = trained(files("a"), precision, dtype=torch.float64)
    ours.save(tmp_path / "saved", increments=Increments())
    encode({"for a checkpoint in memory": ours.owner.masters})
    anew = Recipe(owner=files("b"), precision=precision)(ODD, 0, dtype=torch.float64)
    anew.restore(tmp_path / "saved")
    twin = trained(Local, precision, 3, dtype=torch.float64).full_state()
    for one in (ours, anew):
        one.step(random_batch(2, 4, ODD.context, ODD.vocab))
        assert apart(one.full_state()["model"], twin["model"]) < 1e-12
        assert apart(flat(one.full_state()["optimizer"]), flat(twin["optimizer"])) < 1e-12
        one.restore(tmp_path / "saved")  # its master copies are freed now
        one.close()


def test_a_tensor_without_a_gradient_stays_as_it_is(tmp_path):
    tensors = {name: torch.ones(700, dtype=torch.float64) for name in ("used", "not used")}
    state = StateOnDisk(tensors, [], tmp_path, 0, 4096, 3)
    rule, decay = OptimizerConfig(lr=0.5), dict.fromkeys(tensors, 0.1)
    state.write({}, {})
    for _ in range(2):
        state.update({"used": torch.ones(700, dtype=torch.float64)}, rule, decay, {})
    assert (tensors["not used"] == 1).all()
    assert (tensors["used"] != 1).all()
    assert state.moments().keys() == {"used"}
    assert state.moments()["used"]["step"] == 2
    state.write(state.moments(), {})
    assert state.versions.current["updates"] == 2
    assert state.steps == {"used": 2, "not used": 0}


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 0.0)])
def test_the_loop_of_the_host_is_torch_s_adamw(dtype, most):
    p = torch.randn(1000, dtype=dtype, requires_grad=True)
    ours, m, v = p.detach().clone(), torch.zeros(1000, dtype=dtype), torch.zeros(1000, dtype=dtype)
    options = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.3}
    theirs = torch.optim.AdamW([p], fused=True, **options)
    for step in (1, 2, 3):
        p.grad = torch.randn(1000, dtype=dtype)
        theirs.step()
        host_adamw(dtype)(ours, p.grad, m, v, step, **options)
    assert torch.allclose(ours, p, rtol=most, atol=most)


def test_blocks_cut_a_row_of_tensors():
    found = blocks_of({"a": 3, "none": 0, "b": 5}, 4)
    cuts = [[(n, t.start, t.stop, h.start, h.stop) for n, t, h in pieces] for pieces in found]
    assert cuts == [[("a", 0, 3, 0, 3), ("b", 0, 1, 3, 4)], [("b", 1, 5, 0, 4)]]
    assert blocks_of({}, 4) == [[]]  # a rank that has nothing


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: on_disk(folder="", block=5000), "multiple of 4096"),
        (lambda: on_disk(folder="", block=0), "multiple of 4096"),
        (lambda: on_disk(folder="", buffers=0), "at least 1"),
    ],
)
def test_nonsense_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_other_rules_and_mixed_dtypes_are_refused(tmp_path):
    recipe = Recipe(owner=on_disk(folder=tmp_path))
    with pytest.raises(ValueError, match="not for that of sgd"):
        recipe(ODD, optimizer=OptimizerConfig(rule="sgd"))
    two = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}
    with pytest.raises(ValueError, match="of one dtype"):
        StateOnDisk(two, [], tmp_path, 0, 4096, 1)
