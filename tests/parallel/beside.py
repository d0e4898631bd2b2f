"""Hold a strategy beside one process: loss, norm, gradients, parameters, moments, evaluation, load.

The record of one process is made once for each model and batch, in the process of the tests.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import cloudpickle
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.trainer import Recipe
from helpers.parallel.transform import plain
from helpers.training.differences import farthest
from tests.groups import leave_groups
from tests.nccl_order import in_nccl_order

TOLERANCE = 1e-12  # absolute, in float64: sums over ranks and micro-batches add in another order
RATES = (None, 2e-3, None)  # the second step has a rate of its own
RULE = OptimizerConfig(clip=0.1)  # it clips: the first norms are larger
ODD = GPTConfig(vocab=33, context=8, width=12, layers=2, heads=2)
GPT2 = replace(
    ODD, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2, tied=False
)


def tokens(k: int, sequences: int, config, ignored: float = 0.1):
    return random_batch(k, sequences, config.context, config.vocab, ignored)


@dataclass(frozen=True)
class Case:
    """A strategy to compare with `alone` on one process.

    Attributes:
        layout: by default the recipe's own, or {"dp": 2}.
        batches: (k, sequences, config) -> batch k.
        loads: another strategy that loads the state after two steps, and goes on: on a mesh of its
            own layout if it has one.
        ordered: run on ranks whose groups keep the order of NCCL, where gloo would hide a deadlock.
    """

    strategy: Callable
    config: object = ODD
    layout: dict | None = None
    sequences: int = 5
    micro_batches: int = 1
    optimizer: OptimizerConfig = RULE
    alone: Recipe = field(default_factory=Recipe)
    loads: Callable | None = None
    batches: Callable = tokens
    ordered: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        own = getattr(self.strategy, "layout", None)
        given = dict(zip(own.axes, own.shape, strict=True)) if own else {"dp": 2}
        return self.layout or given

    @property
    def ranks(self) -> int:
        return Layout(**self.sizes).world_size

    @property
    def place(self) -> tuple:
        """Where to run it: cases of one place share ranks and their groups."""
        return self.ranks, self.ordered, str(self.sizes)

    def batch(self, k: int):
        return replace(self.batches(k, self.sequences, self.config), step=k)


RECORDS: dict[bytes, list] = {}


def record(case: Case) -> list:
    """What one process gets in each step, and: first (gradients, evaluation), then its state."""
    asked = (case.config, case.sequences, case.optimizer, case.alone, case.batches)
    key = cloudpickle.dumps(asked)
    if key not in RECORDS:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        given = {"dtype": torch.float64, "optimizer": case.optimizer}
        one, found = case.alone(case.config, 3, **given), []
        for k, lr in enumerate(RATES):
            step = one.step(case.batch(k), lr=lr)
            first = (one.full_gradients(), one.evaluate(case.batch(99))) if k == 0 else None
            found.append((step, first or one.full_state()))
        torch.set_num_threads(before)
        RECORDS[key] = found
    return RECORDS[key]


def differences(worker, case: Case, twin: list) -> dict[str, float]:
    """The largest differences of this rank from the record, over all steps and after a load.

    What the strategy returns, and what it has loaded, is overwritten: it must be copies.
    """
    torch.set_num_threads(1)
    torch.manual_seed(worker.rank)
    mesh = mesh_of(worker, Layout(**case.sizes))
    given = {
        "dtype": torch.float64,
        "optimizer": case.optimizer,
        "micro_batches": case.micro_batches,
    }
    ours, far, end = case.strategy(case.config, 3, mesh, **given), {}, {}
    assert ours.lossy == ""

    def add(name, value):
        far.setdefault(name, []).append(float(value))

    for k, (theirs, wanted) in enumerate(twin):
        if k == 2:
            ours.close()
            anew = case.loads or case.strategy
            if getattr(case.loads, "layout", None):
                mesh = mesh_of(worker, case.loads.layout)
            ours = anew(case.config, 3, mesh, **given)
            ours.load(end)
            spoil(end)
        share = lambda batch: batch.shard(ours.data_rank, ours.data_size)  # noqa: B023, E731
        mine = ours.step(share(case.batch(k)), lr=RATES[k])
        assert (mine.tokens, mine.skipped) == (theirs.tokens, False)
        add("loss", abs(mine.loss - theirs.loss))
        add("norm", abs(mine.grad_norm - theirs.grad_norm))
        if k == 0:  # the states of the next steps have this step's errors, too
            gradients, (loss, count) = wanted
            found = ours.full_gradients()
            add("gradients", apart(found, gradients))
            spoil(found)
            total, targets = ours.evaluate(share(case.batch(99)))
            assert targets == count
            add("evaluation", abs(total - loss))
            continue
        given_out = ours.full_state()
        end = copy.deepcopy(given_out)
        spoil(given_out)
        add("parameters", apart(end["model"], wanted["model"]))
        add("optimizer", apart(flat(end["optimizer"]), flat(wanted["optimizer"])))
    ours.close()
    return {name: largest(values) for name, values in far.items()}


def mesh_of(worker, layout: Layout):
    """The mesh of a layout: the last one again, or a new one. New process groups take long."""
    kept = getattr(worker.state, "mesh", None)
    if kept is None or kept.layout != layout:
        leave_groups(worker)
        worker.state.mesh = make_mesh(layout, worker.device)
    return worker.state.mesh


def spoil(state: dict):
    """Overwrite all tensors of a state."""
    for value in state.values():
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, torch.Tensor):
            value.fill_(9)


def apart(ours, theirs) -> float:
    return farthest(ours, theirs)[0] if theirs or ours else 0.0


def flat(state) -> dict[str, torch.Tensor]:
    """All tensors of an optimizer's state, by name and slot."""
    return {
        f"{name}.{slot}": torch.as_tensor(value)
        for name, slots in state.items()
        for slot, value in slots.items()
    }


def largest(values: list[float]) -> float:
    """The largest value; NaN if there is one, which `max` may lose."""
    return next((value for value in values if value != value), max(values))


def hold(ranks: Callable, case: Case):
    """Train a case on ranks, and assert that every rank agrees with one process.

    Args:
        ranks: (number, whether in NCCL's order) -> a Cluster of such ranks.
    """
    given = {"case": case, "twin": record(case)}
    fn, given = (
        (in_nccl_order, {"fn": differences} | given) if case.ordered else (differences, given)
    )
    runs = ranks(case.ranks, case.ordered).run(fn, **given)
    for rank, far in enumerate(runs):
        assert all(value <= TOLERANCE for value in far.values()), (rank, far)


def frozen(*patterns: str):
    """A transform that freezes the parameters whose names contain one of the patterns."""
    return partial(freeze, patterns)


def freeze(patterns, config, seed, seat, dtype):
    placed = plain(config, seed, seat, dtype)
    for name, p in placed.model.named_parameters():
        if any(pattern in name for pattern in patterns):
            p.requires_grad_(False)
    return placed
