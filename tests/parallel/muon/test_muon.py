"""Muon: the rule beside torch's and the SVD; its owners equal one process within 1e-12."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.measure.flops import flops_of
from helpers.models.gpt import GPTConfig, build
from helpers.models.settings import MambaSettings
from helpers.parallel.ddp.after_backward import NaiveDDP
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.muon.owners import MuonReplicated, MuonZero1
from helpers.parallel.muon.rule import A, B, C, MuonConfig, newton_schulz
from helpers.parallel.offload.host import OnHost
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.precision import Mixed
from helpers.parallel.single import Single
from helpers.parallel.tensor.transform import tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.parallel.units import units
from helpers.parallel.world import ALONE
from helpers.parallel.zero.stage1 import Zero1
from helpers.parallel.zero.stage3 import Zero3
from helpers.plans.messages import wire
from helpers.plans.muon import hidden_matrix, muon_messages, newton_schulz_flops, state_numbers
from helpers.plans.schedules import one_f_one_b
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.plans.zero_traffic import zero_messages
from helpers.runtime.failure import WorkerError
from helpers.state.placing import whole
from tests.parallel.beside import GPT2, ODD, Case, frozen, hold, mesh_of, tokens

RULE = MuonConfig(clip=0.1)
EXACT = Mixed(low=torch.float64)
SMALL = {"bucket_cap_mb": 2000 / 2**20, "first_bucket_mb": 500 / 2**20}
OWNERS = {"replicated": partial(MuonReplicated, **SMALL), "1": MuonZero1}
MAMBA = replace(ODD, mixer=("mamba", "attention"), mamba=MambaSettings(state=3))
NESTED = partial(plain, data=("node", "local"))


def owned(owner, config=ODD, layout=None, *, alone=None, loads=None, rest=None, **seams):
    given = {"optimizer": RULE, **(rest or {})}
    recipe = Recipe(owner=owner, **seams)
    return Case(recipe, config, layout, alone=alone or Recipe(), loads=loads, **given)


def each(name, **options):
    other = {"replicated": MuonZero1, "1": MuonReplicated}
    return {
        f"{owner}, {name}": owned(o, **{k: v(other[owner]) if k == "loads" else v
                                        for k, v in options.items()})
        for owner, o in OWNERS.items()
    }  # fmt: skip


def piped(owner, schedule, micro_batches):
    layout = Layout(pp=2, dp=2)
    recipe = Recipe(layout=layout, schedule=schedule, owner=owner)
    return Case(recipe, replace(GPT2, layers=4, tied=True), None, 5, micro_batches, RULE)


CASES = {
    "every rank does all": owned(Replicated, GPT2),
    **each("3 ranks, loaded by the other", layout={"dp": 3}, loads=lambda o: Recipe(owner=o),
           rest={"sequences": 7, "micro_batches": 2}),
    **each("more ranks than matrices of a size", config=replace(ODD, layers=1), layout={"dp": 4}),
    **each("one process goes on, no data", config=GPT2, loads=lambda _: Recipe(owner=Replicated),
           rest={"sequences": 1}),
    **each("on the host", precision=OnHost(EXACT), rest={"micro_batches": 2}),
    **each("a block frozen", config=MAMBA, transform=frozen("blocks.1", "norm"),
           alone=Recipe(transform=frozen("blocks.1", "norm"))),
    "1, nested": owned(MuonZero1, layout={"node": 2, "local": 2}, transform=NESTED,
                       rest={"sequences": 7}),
    "replicated, naive": owned(partial(MuonReplicated, replica=NaiveDDP), GPT2),
    "replicated, 1F1B": piped(OWNERS["replicated"], one_f_one_b, 2),
    "1, ZB-V": piped(MuonZero1, zero_bubble_v, 2),
    "1, not flying": owned(partial(MuonZero1, in_flight=0), GPT2, rest={"micro_batches": 2}),
}  # fmt: skip
BY_RANKS = dict(sorted(CASES.items(), key=lambda item: item[1].ranks))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_one_process(ranks, case):
    hold(ranks, case)


# the rule


@pytest.mark.parametrize("shape", [(6, 6), (3, 8), (9, 4), (1, 5)])
@pytest.mark.parametrize("steps", [1, 5])
def test_newton_schulz_is_a_polynomial_of_the_singular_values(shape, steps):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(steps):
        s = A * s + B * s**3 + C * s**5
    found = newton_schulz(matrix, steps)
    torch.testing.assert_close(found, u @ s.diag() @ vh, rtol=0, atol=1e-12)
    assert newton_schulz(matrix.float()).dtype == torch.bfloat16
    assert newton_schulz(torch.zeros(shape, dtype=torch.float64)).abs().max() == 0


def test_singular_values_end_near_one():
    for small in torch.logspace(-5, -0.2, 200, dtype=torch.float64):
        matrix = torch.stack([small, (1 - small**2).sqrt()]).diag()  # its norm is 1
        found = newton_schulz(matrix).diag()
        assert (found > (0.68 if small > 2e-3 else 0)).all()
        assert (found < torch.tensor([min(1.21, 485 * small), 1.21])).all()


TINY = GPTConfig(vocab=16, context=4, width=8, layers=1, heads=2, bias=True)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon is of PyTorch 2.9")
def test_it_has_the_bits_of_torch_s_muon_and_adamw():
    ours, theirs = (dict(build(TINY, 0, torch.float32).named_parameters()) for _ in range(2))
    rule = MuonConfig(lr=0.02, momentum=0.8, weight_decay=0.3, betas=(0.7, 0.8), eps=1e-3)
    optimizer = rule.make(ours, {n: whole(ALONE, n, p.shape) for n, p in ours.items()})
    matrices = [p for n, p in theirs.items() if hidden_matrix(n, p.shape)]
    rest = {n: p for n, p in theirs.items() if not hidden_matrix(n, p.shape)}
    groups = [{"params": [p for p in rest.values() if (p.ndim > 1) == decays],
               "weight_decay": 0.3 * decays} for decays in (True, False)]  # fmt: skip
    muon = torch.optim.Muon(matrices, lr=0.02, momentum=0.8, weight_decay=0.3,
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.7, 0.8), eps=1e-3, fused=True)
    drawn = torch.Generator().manual_seed(0)
    for lr in (0.02, 0.01, 0.05):
        for one in (optimizer, muon, adamw):
            for group in one.param_groups:
                group["lr"] = lr
        for name in ours:
            ours[name].grad = torch.randn(ours[name].shape, generator=drawn)
            theirs[name].grad = ours[name].grad.clone()
        optimizer.step()
        muon.step()
        adamw.step()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    assert (len(matrices), len(optimizer.param_groups)) == (7, 3)


def test_the_defaults_and_what_is_refused(ranks):
    assert (RULE.momentum, RULE.lr, RULE.betas) == (0.95, 1e-3, (0.9, 0.95))
    vector = torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match="no hidden matrix to train"):
        RULE.make({"norm": vector}, {"norm": whole(ALONE, "norm", (3,))})
    cut = [
        ({"owner": Zero1}, {"dp": 2}, "ZeRO cuts parameters into flat shards, and Muon cannot"),
        ({"owner": Zero3}, {"dp": 2}, "Muon needs whole matrices"),
        ({"transform": tensor_parallel}, {"tp": 2}, "without tensor parallelism"),
    ]
    for seams, sizes, words in cut:

        def make(worker, seams=seams, sizes=sizes):
            Recipe(**seams)(ODD, 0, mesh_of(worker, Layout(**sizes)), optimizer=RULE)

        with pytest.raises(WorkerError, match=words):
            ranks(2).run(make)


# bytes, FLOPs, memory


def counted(worker, owner, rule):
    torch.set_num_threads(1)
    mesh = mesh_of(worker, Layout(dp=worker.world_size))
    ours = Recipe(owner=owner)(GPT2, 0, mesh, optimizer=rule)
    batch = tokens(0, 4, GPT2).shard(ours.data_rank, ours.data_size)
    ours.step(batch)  # the first step agrees on the order of buckets
    with ledger() as log:
        ours.step(batch)
    flops = flops_of(ours.optimizer.step).forward
    moments = [v.numel() for slots in ours.owner.moments().values()
               for slot, v in slots.items() if slot != "step"]  # fmt: skip
    ours.close()
    scalars = [e for e in log.entries if e.call == "all_reduce" and e.payload <= 8 * 200]
    return log.wire - sum(e.wire for e in scalars), flops, sum(moments)


@pytest.mark.parametrize("n", [2, 3])
def test_bytes_flops_and_state_are_the_planned_ones(ranks, n):
    model = Single(GPT2).model
    named = [{k: tuple(p.shape) for k, p in unit.parameters.items()} for unit in units(model)]
    shapes = {name: shape for unit in named for name, shape in unit.items()}
    params = sum(math.prod(shape) for shape in shapes.values())
    every = sum(newton_schulz_flops(s) for k, s in shapes.items() if hidden_matrix(k, s))

    def runs(owner, rule=RULE):
        return list(zip(*ranks(n).run(counted, owner=owner, rule=rule), strict=True))

    sent, flops, state = runs(Replicated, OptimizerConfig())
    (gradients,) = zero_messages([params], n, 0, gradient_bytes=4)
    assert sent == pytest.approx([gradients.sent] * n)
    assert (set(flops), set(state)) == ({0}, {state_numbers(shapes, muon=False)})
    sent, flops, state = runs(Replicated)
    assert (set(flops), set(state)) == ({every}, {state_numbers(shapes)})
    for stage, owner in ((0, MuonReplicated), (1, MuonZero1)):
        sent, flops, state = runs(owner)
        planned = sum(wire(muon_messages(named, n, stage)).values())
        assert sent == pytest.approx([planned] * n)
        assert sum(flops) == every
        assert max(flops) < 1.1 * every / n
        vectors = sum(math.prod(s) for k, s in shapes.items() if not hidden_matrix(k, s))
        assert sum(state) == state_numbers(shapes) + (2 * vectors * (n - 1) if stage == 0 else 0)
