"""Local SGD and DiLoCo equal the papers' loops, written plainly in one process, within 1e-12.

With H = 1 and the plain mean, SGD equals data parallel.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout
from helpers.comm.transport import GroupTransport
from helpers.models.gpt import GPTConfig
from helpers.parallel.cut_sequence.model import context_parallel
from helpers.parallel.ddp.after_backward import NaiveDDP
from helpers.parallel.ddp.local_steps import LocalSteps, diloco
from helpers.parallel.ddp.owner import Replicated
from helpers.parallel.offload.host import OnHost
from helpers.parallel.optimizer import OptimizerConfig, set_lr
from helpers.parallel.precision import Mixed
from helpers.parallel.single import Single
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.plans.local_steps import Rounds
from helpers.plans.messages import Message, wire
from helpers.plans.schedules import one_f_one_b
from helpers.precision.blocks import Blocks
from helpers.precision.scaling import LossScale
from helpers.runtime.failure import WorkerError
from helpers.training.twin import compare
from tests.parallel import beside
from tests.parallel.beside import GPT2, ODD, apart, flat, frozen, largest, mesh_of, spoil, tokens
from tests.parallel.experts import ExpertConfig, expert_parallel
from tests.parallel.threads import one_thread

TOLERANCE = 1e-12  # absolute, in float64
STEPS, LOAD = 8, 5  # the load is in the middle of rounds
RATES = (None, 2e-3, None, 3e-3, None, None, 1e-3, None)
SGD = OptimizerConfig(rule="sgd", lr=0.1, momentum=0.5, clip=None)
ADAMW = OptimizerConfig(clip=0.1, eps=1e-4)
SHARP = Mixed(torch.float64, scale=LossScale(scale=8.0, interval=2))
CUT = replace(GPT2, width=24, heads=4, context=12)


class Rounded(GroupTransport):
    lossy, bound = "rounded", 0.1


DECLARED = [
    (SGD, {}, "", 0.0),
    (SGD, {"transport": Rounded}, "rounded", 0.1),
    (SGD, {"wire": torch.bfloat16}, "replicas average every 1 updates", 0.75),
    (SGD, {"every": 2}, "replicas average every 2 updates", 0.75),
    (replace(SGD, clip=1.0), {}, "replicas average every 1 updates", 0.75),
    (ADAMW, {}, "replicas average every 1 updates", 0.75),
    (SGD, {"outer_momentum": 0.9}, "replicas average every 1 updates", float("inf")),
    (SGD, {"outer_lr": 0.7}, "replicas average every 1 updates", float("inf")),
]


def declared(worker):
    mesh, found = mesh_of(worker, Layout(dp=2)), []
    for rule, options, *_ in DECLARED:
        owner = partial(LocalSteps, **{"every": 1} | options)
        one = Recipe(owner=owner)(ODD, 3, mesh, optimizer=rule)
        found.append((one.lossy, one.bound))
        one.close()
    return found


def test_what_is_lossy_says_so(ranks):
    (found, _) = ranks(2).run(declared)
    assert found == [(lossy, bound) for *_, lossy, bound in DECLARED]
    assert diloco.keywords == {"outer_lr": 0.7, "outer_momentum": 0.9}


def overflows(worker):
    """One rank's gradient overflows: no rank updates, and rounds stay in step."""
    mesh = mesh_of(worker, Layout(dp=2))
    precision = Mixed(torch.float64, scale=LossScale(scale=4.0))
    ours = Recipe(owner=partial(LocalSteps, every=2), precision=precision)(ODD, 3, mesh)
    share = tokens(0, 4, ODD).shard(ours.data_rank, 2)
    skipped = []
    for k in range(4):
        broken = k == 1 and worker.rank == 1
        hook = ours.parameters["norm.weight"].register_hook(
            lambda g, broken=broken: g * float("inf") if broken else g
        )
        skipped.append(ours.step(share).skipped)
        hook.remove()
    return skipped, ours.owner.updates, ours.precision.loss_scale


def test_an_overflow_on_one_rank_skips_the_update_of_all(ranks):
    assert list(ranks(2).run(overflows)) == [([False, True, False, False], 3, 2.0)] * 2


@pytest.mark.parametrize(
    ("owner", "seams", "words"),
    [
        (partial(LocalSteps, every=0), {}, "every must be a whole number"),
        (partial(LocalSteps, every=2, axis="node"), {}, "not along 'node'"),
        (partial(LocalSteps, every=2), {"transform": expert_parallel}, "cannot share experts"),
    ],
)
def test_what_cannot_be_is_refused(ranks, owner, seams, words):
    config = ExpertConfig(experts=2) if seams else ODD

    def make(worker):
        Recipe(owner=owner, **seams)(config, 3, mesh_of(worker, Layout(dp=2)))

    with pytest.raises(WorkerError, match=words):
        ranks(2).run(make)


def test_a_single_process_has_no_replicas():
    with pytest.raises(ValueError, match="different targets along"):
        Recipe(owner=partial(LocalSteps, every=2))(ODD)


def exactly(worker, case, twin):
    """Differences from data parallel's twin. The norm is an upper bound; the state has anchors."""
    found = beside.differences(worker, case, twin)
    return {name: value for name, value in found.items() if name not in ("norm", "optimizer")}


EVERY_STEP = partial(LocalSteps, every=1, fragments=2)
EXACT = {
    "2 replicas": beside.Case(Recipe(owner=EVERY_STEP), GPT2, micro_batches=3, optimizer=SGD),
    "a frozen block": beside.Case(
        Recipe(owner=EVERY_STEP, transform=frozen("blocks.0")),
        alone=Recipe(transform=frozen("blocks.0")), optimizer=SGD),
    "3 replicas, one without data": beside.Case(
        Recipe(owner=EVERY_STEP), GPT2, {"dp": 3}, 2, optimizer=SGD),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT)
def test_sgd_that_averages_each_update_is_data_parallel(ranks, case):
    for found in ranks(case.ranks).run(exactly, case=case, twin=beside.record(case)):
        assert set(found) == {"loss", "gradients", "parameters", "evaluation"}
        assert max(found.values()) <= TOLERANCE, found


def counted(worker, options, steps):
    """(bytes sent and payloads of each step, the fragments' numbers, the optimizer's bytes)."""
    torch.set_num_threads(1)
    mesh = mesh_of(worker, Layout(dp=worker.world_size))
    ours = Recipe(owner=partial(LocalSteps, **options))(ODD, 3, mesh)
    logs = []
    for k in range(steps):
        with ledger() as log:
            ours.step(tokens(k, 6, ODD).shard(ours.data_rank, ours.data_size))
        logs.append((log.wire, sorted(e.payload for e in log.entries)))
    sizes = [sum(ours.parameters[n].numel() for n in names) for names in ours.owner.names_of]
    held = ours.held()["optimizer", "cpu"]
    ours.close()
    return logs, sizes, held


SCALARS = 3  # of 8 bytes in each step: the count of targets, the loss, the norm
ALL_REDUCED = lambda p, n: 2 * 4 * p * (n - 1) / n  # noqa: E731


@pytest.mark.parametrize(
    ("options", "plan", "once", "copies"),
    [
        ({"every": 1}, {}, ALL_REDUCED, 1),
        ({"every": 4, "outer_momentum": 0.9}, {}, ALL_REDUCED, 2),
        ({"every": 4, "fragments": 3}, {}, ALL_REDUCED, 1),
        ({"every": 2, "wire": torch.bfloat16}, {"number_bytes": 2},
         lambda p, n: ALL_REDUCED(p, n) / 2, 1),
        ({"every": 2, "wire": Blocks(bits=4, size=64)}, {"form": (4, 64)},
         lambda p, n: (n - 1) * (p / 2 + 4 * -(-p // 64)), 1),
    ],
)  # fmt: skip
def test_the_bytes_are_planned_and_fall_by_h(ranks, options, plan, once, copies):
    rounds = Rounds(every=options["every"], fragments=options.get("fragments", 1))
    n, steps = 3, 2 * rounds.every
    for logs, sizes, held in ranks(n).run(counted, options=options, steps=steps):
        for k, (sent, payloads) in enumerate(logs):
            planned = rounds.messages(sizes, n, k + 1, **plan)
            assert payloads == sorted([8] * SCALARS + [m.payload for m in planned])
            scalar = Message(axis="dp", call="all_reduce", payload=8, ranks=n, times=SCALARS)
            assert sent == pytest.approx(sum(wire([*planned, scalar]).values()))
        each = sum(sent for sent, _ in logs) / steps
        scalars = ALL_REDUCED(SCALARS * 2, n)
        assert each == pytest.approx(once(sum(sizes), n) / rounds.every + scalars)
        moments = 2 * sum(sizes) * 4 + 4 * len(NAMES)  # AdamW's, with a step count each
        assert held == moments + copies * sum(sizes) * 4


NAMES = list(Single(ODD).parameters)


@pytest.mark.parametrize("wire", [None, torch.bfloat16, Blocks(bits=8, size=64), Blocks(bits=4)])
def test_outer_gradients_in_messages(ranks, wire):
    """Codes are exactly those of `Blocks`; bfloat16 is within its bound."""

    def mean(worker):
        mesh = mesh_of(worker, Layout(dp=3))
        own = Recipe(owner=partial(LocalSteps, every=2, wire=wire))(ODD, 3, mesh).owner
        own.begin()
        (names,) = own.names_of
        before = torch.cat([own.anchors[name].view(-1) for name in names])
        torch.manual_seed(worker.rank)
        with torch.no_grad():
            for master in own.masters.values():
                master.add_(torch.randn_like(master) * 1e-3)
        row = before - torch.cat([own.masters[name].detach().view(-1) for name in names])
        own.average(names)
        assert all(torch.equal(own.masters[name], own.anchors[name]) for name in names)
        return row, before - torch.cat([own.anchors[name].view(-1) for name in names])

    rows, means = zip(*ranks(3).run(mean), strict=True)
    exact = sum(row.double() for row in rows) / 3
    off = (means[0] - exact).abs()
    assert all(torch.equal(one, means[0]) for one in means)
    if isinstance(wire, Blocks):
        decoded = [wire.decode(wire.encode(row), torch.empty_like(row)) for row in rows]
        torch.testing.assert_close(means[0], sum(decoded) / 3, atol=1e-6, rtol=0)
        assert (off < 1e-6 + sum(wire.bound(row) for row in rows) / 3).all()
        assert off.max() > 1e-3 / wire.largest
    elif wire is None:
        assert off.max() < 1e-6
    else:
        size = sum(row.abs() for row in rows) / 3
        assert 1e-4 < ((off - 1e-6) / size).max() <= 3 / 256


@dataclass(frozen=True, kw_only=True)
class Case:
    """An owner on a layout, and what the plain loop needs to do the same.

    Attributes:
        first: the outer optimizer before LOAD, if it is another.
        then: after LOAD steps: "load" a state, "restore" a checkpoint, "go on" after a save, or
            "load plain": a state as of a strategy without anchors.
    """

    layout: dict = field(default_factory=lambda: {"dp": 2})
    every: int = 3
    fragments: int = 1
    outer: tuple[float, float] = (0.7, 0.9)
    first: tuple[float, float] | None = None
    axis: str = "dp"
    rule: OptimizerConfig = ADAMW
    config: GPTConfig = ODD
    sequences: int = 5
    micro_batches: int = 1
    frozen: bool = False  # the transform freezes
    seams: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    then: str = "load"

    @property
    def ranks(self) -> int:
        return Layout(**self.layout).world_size

    def recipe(self, outer):
        options = {"every": self.every, "fragments": self.fragments, "axis": self.axis}
        options |= dict(zip(("outer_lr", "outer_momentum"), outer, strict=True)) | self.options
        return Recipe(owner=partial(LocalSteps, **options), **self.seams)

    def batch(self, k):
        return replace(tokens(k, self.sequences, self.config), step=k)


def fragment_of(name: str, fragments: int) -> int:
    """Units: embedding, (positions), blocks, norm, (head), in the order of definition."""
    unit = ".".join(name.split(".")[: 2 if name.startswith("blocks") else 1])
    return UNITS.index(unit) % fragments if fragments > 1 else 0


UNITS = ["embedding", "blocks.0", "blocks.1", "norm"]  # of ODD


def plain_loop(case: Case) -> list:
    """DiLoCo's algorithm 1 in one process: a model for each replica, one after the other."""
    n = Layout(**case.layout).size(case.axis)
    transform = case.seams.get("transform") if case.frozen else plain
    rule = replace(case.rule, clip=None)
    make = lambda: Recipe(transform=transform)(case.config, 3, dtype=torch.float64, optimizer=rule)  # noqa: E731
    replicas = [make() for _ in range(n)]
    names = [m for m, p in replicas[0].parameters.items() if p.requires_grad]
    own = [{m: one.parameters[m] for m in names} for one in replicas]
    mean = lambda of: {m: sum(of(p[m]) for p in own) / n for m in names}  # noqa: E731
    anchor, updates, found = mean(torch.detach), 0, []
    velocity = {m: torch.zeros_like(p) for m, p in anchor.items()}
    outer = case.first or case.outer
    for k, lr in enumerate(RATES):
        batch, loss = case.batch(k), 0.0
        count = max(batch.counted(), 1)
        for i, one in enumerate(replicas):
            one.model.zero_grad()
            total, _ = one.model.loss(batch.shard(i, n))
            (n * total / count).backward()
            loss += total.item() / count
        norm = (sum(p.grad.square().sum() for one in own for p in one.values()) / n).sqrt().item()
        factor = 1.0 if case.rule.clip is None else min(1.0, case.rule.clip / (norm + 1e-6))
        for one in replicas:
            torch._foreach_mul_([one.parameters[m].grad for m in names], factor)
            set_lr(one.optimizer, case.rule.lr if lr is None else lr)
            one.optimizer.step()
        updates += 1
        for m in names:
            phase = fragment_of(m, case.fragments) * case.every // case.fragments
            if (updates - phase) % case.every == 0:
                delta = anchor[m] - mean(torch.detach)[m]
                velocity[m] = outer[1] * velocity[m] + delta
                anchor[m] = anchor[m] - outer[0] * (delta + outer[1] * velocity[m])
                for one in own:
                    one[m].data.copy_(anchor[m])
        values, gradients = mean(torch.detach), mean(lambda p: p.grad)
        kept = [one.owner.moments() for one in replicas]
        moments = {m: {slot: sum(of[m][slot] for of in kept) / n for slot in kept[0].get(m, {})}
                   for m in names}  # fmt: skip
        still = {m: p.detach() for m, p in replicas[0].parameters.items() if m not in names}
        found.append((loss, norm, gradients, values | still, moments))
        if k + 1 == LOAD:  # a state has the replicas' mean
            outer = case.outer
            for one in replicas:
                for m in names:
                    one.parameters[m].data.copy_(values[m])
                one.owner.take({m: {s: v.clone() for s, v in moments[m].items()} for m in names})
            if case.first or case.then == "load plain":
                velocity = {m: torch.zeros_like(p) for m, p in anchor.items()}
            if case.then == "load plain":
                anchor, updates = values, 0
    return found


def far(worker, case: Case, twin: list, folder: str) -> dict:
    """The largest differences of this rank from the plain loop."""
    torch.set_num_threads(1)
    torch.manual_seed(worker.rank)
    mesh = mesh_of(worker, Layout(**case.layout))
    given = {"dtype": torch.float64, "optimizer": case.rule, "micro_batches": case.micro_batches}
    ours, found = case.recipe(case.first or case.outer)(case.config, 3, mesh, **given), {}
    still = {n: p.detach().clone() for n, p in ours.parameters.items() if not p.requires_grad}
    assert f"every {case.every} updates" in ours.lossy

    def add(name, value):
        found.setdefault(name, []).append(value)

    for k, (loss, norm, gradients, values, moments) in enumerate(twin):
        share = case.batch(k).shard(ours.data_rank, ours.data_size)
        step = ours.step(share, lr=RATES[k])
        add("loss", abs(step.loss.item() - loss))
        add("norm", abs(step.grad_norm.item() - norm))
        if k + 1 not in (LOAD, len(twin)):
            continue
        spoil({"gradients": ours.full_gradients()} | ours.full_state())  # copies
        state = ours.full_state()
        inner = {name: {s: v for s, v in slots.items() if s in moments.get(name, {})}
                 for name, slots in state["optimizer"].items()}  # fmt: skip
        add("gradients", apart(ours.full_gradients(), gradients))
        add("parameters", apart(state["model"], values))
        add("moments", apart(flat(inner), flat(moments)))
        if k + 1 == LOAD:
            if case.then in ("restore", "go on"):
                ours.save(folder, updates=k)
            if case.then == "go on":  # a save averages, so this run goes on as a restored one
                continue
            ours.close()
            if case.then == "load plain":
                other = Recipe(owner=Replicated)(case.config, 0, mesh, **given)
                other.load(state)
                state = other.full_state()  # without anchors
                other.close()
            ours = case.recipe(case.outer)(case.config, 3, mesh, **given)
            ours.restore(folder) if case.then == "restore" else ours.load(state)
    assert all(torch.equal(ours.parameters[name], p) for name, p in still.items())
    ours.close()
    return {name: largest(values) for name, values in found.items()}


ISLANDS = {"layout": {"node": 2, "local": 2}, "axis": "node", "sequences": 7,
           "seams": {"transform": partial(plain, data=("node", "local"))}}  # fmt: skip
CASES = {
    "DiLoCo, saved": Case(micro_batches=2, then="go on", seams={"precision": SHARP}),
    "Local SGD": Case(outer=(1.0, 0.0), rule=SGD, config=GPT2, then="restore"),
    "3 replicas, after Local SGD": Case(layout={"dp": 3}, first=(1.0, 0.0), every=2, sequences=7),
    "a replica without data": Case(layout={"dp": 3}, sequences=2, config=GPT2, then="restore"),
    "after another strategy": Case(then="load plain", fragments=2),
    "3 replicas, a frozen block": Case(layout={"dp": 3}, then="go on", frozen=True,
                                       seams={"transform": frozen("blocks.0")}),
    "each update": Case(every=1, config=GPT2),
    "streaming, on the host": Case(every=4, fragments=2, micro_batches=2, then="restore",
                                   seams={"precision": OnHost(SHARP)}),
    "more fragments than units": Case(every=3, fragments=6, layout={"dp": 3}),
    "islands, naive": Case(**ISLANDS, options={"replica": NaiveDDP}, micro_batches=2,
                           then="restore"),
    "sequence parallel inside": Case(layout={"dp": 2, "tp": 2}, config=CUT, then="restore",
                                     seams={"transform": sequence_parallel}),
    "context parallel inside": Case(layout={"dp": 2, "cp": 2}, rule=SGD, outer=(1.0, 0.0),
                                    config=replace(ODD, mixer="mamba", mlp="none",
                                                   positions="none", context=11),
                                    seams={"transform": context_parallel}),
    "a pipeline inside": Case(layout={"dp": 2, "pp": 2}, micro_batches=2, seams={
        "layout": Layout(dp=2, pp=2), "schedule": one_f_one_b}),
}  # fmt: skip
STARTED = (3, 2, 4)  # ranks, in this order: few clusters start in this file
BY_RANKS = dict(sorted(CASES.items(), key=lambda case: STARTED.index(case[1].ranks)))


@pytest.mark.parametrize("case", BY_RANKS.values(), ids=BY_RANKS)
def test_it_equals_the_papers_loop(ranks, case, tmp_path):
    with one_thread():
        twin = plain_loop(case)
    given = {"case": case, "twin": twin, "folder": str(tmp_path / "saved")}
    for rank, found in enumerate(ranks(case.ranks).run(far, **given)):
        assert all(value <= TOLERANCE for value in found.values()), (rank, found)


def test_local_steps_are_within_their_bound(kept_ranks):
    given = {"config": ODD, "steps": 6, "device": "cpu", "optimizer": OptimizerConfig(eps=1e-4)}
    found = compare(Recipe(owner=partial(LocalSteps, every=3)), **given)
    assert found, found
    assert found.lossy == "replicas average every 3 updates"
    assert 0.05 < found.worst("relative") < found.bound < 1
