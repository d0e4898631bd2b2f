"""Train recipes beside one process, many in one launch, and report how far they are from it."""

from dataclasses import dataclass, field, replace
from functools import partial

import torch

from helpers.comm.direct import DirectTransport
from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.recipe import Recipe, plain
from helpers.parallel.zero.film import filming
from helpers.training.differences import farthest
from tests.parallel.pipeline.beside import largest

ODD = GPTConfig(vocab=33, context=8, width=12, layers=2, heads=2)
PADDED = GPTConfig(vocab=33, context=8, width=7, layers=2, heads=1, positions="learned")
GPT2 = replace(
    ODD, norm="layer", positions="learned", mlp="gelu", bias=True, dropout=0.2, tied=False
)


@dataclass
class Case:
    """A recipe to compare with the recipe `alone` on one process.

    Attributes:
        loads: a recipe that loads the state after two steps, and goes on.
    """

    recipe: Recipe
    config: GPTConfig = ODD
    layout: dict = field(default_factory=dict)
    sequences: int = 5
    micro_batches: int = 1
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    alone: Recipe = field(default_factory=Recipe)
    loads: Recipe | None = None


def far(worker, cases: dict[str, Case]) -> dict[str, float]:
    """The largest difference of each case: loss, gradients, parameters and optimizer state."""
    torch.set_num_threads(1)
    meshes: dict = {}
    return {name: worst(worker, case, meshes) for name, case in cases.items()}


def worst(worker, case: Case, meshes) -> float:
    layout = case.layout or {"dp": worker.world_size}
    mesh = meshes.get(str(layout)) or make_mesh(Layout(**layout))
    meshes[str(layout)] = mesh
    given = {"dtype": torch.float64, "optimizer": case.optimizer}
    one = case.alone(case.config, 0, **given)
    ours = case.recipe(case.config, 0, mesh, micro_batches=case.micro_batches, **given)
    found = [apart(ours.full_state()["model"], one.full_state()["model"])]
    for k in range(3):
        if k == 2:  # the state of one process is the state of any stage on any world
            ours.load(one.full_state())
        if k == 2 and case.loads:
            state = ours.full_state()
            ours.close()
            ours = case.loads(case.config, 0, mesh, micro_batches=case.micro_batches, **given)
            ours.load(state)
        batch = random_batch(k, case.sequences, case.config.context, 33, ignored=0.1)
        batch = replace(batch, step=k)
        mine = ours.step(batch.shard(ours.data_rank, ours.data_size))
        theirs = one.step(batch)
        found.append(abs(float(mine.loss) - float(theirs.loss)))
        found.append(abs(float(mine.grad_norm) - float(theirs.grad_norm)))
        found.append(apart(ours.full_gradients(), one.full_gradients()))
        ends = ours.full_state(), one.full_state()
        found.append(apart(*(end["model"] for end in ends)))
        found += [
            apart(*(flat(end["optimizer"]) for end in ends)),
            abs(
                ours.evaluate(batch.shard(ours.data_rank, ours.data_size))[0]
                - one.evaluate(batch)[0]
            ),
        ]
    ours.close()
    return largest(found)


def apart(ours, theirs) -> float:
    return farthest(ours, theirs)[0] if theirs or ours else 0.0


def flat(state) -> dict[str, torch.Tensor]:
    """All tensors of an optimizer's state, by name and slot."""
    return {
        f"{name}.{slot}": torch.as_tensor(value)
        for name, slots in state.items()
        for slot, value in slots.items()
    }


def frozen(*patterns: str):
    """A transform that freezes the parameters whose names contain one of the patterns."""

    def transform(config, seed, seat, dtype):
        model, parts = plain(config, seed, seat, dtype)
        for name, p in model.named_parameters():
            if any(pattern in name for pattern in patterns):
                p.requires_grad_(False)
        return model, parts

    return transform


class Telling(DirectTransport):
    """Add the start and the end of each message to `told`, beside the film's events."""

    def __init__(self, group):
        super().__init__(group)
        self.told: list = []

    def all_gather(self, every, own):
        return Told(super().all_gather(every, own), self, f"gather {every.numel()}")

    def reduce_scatter(self, own, every):
        return Told(super().reduce_scatter(own, every), self, f"scatter {every.numel()}")


class Told:
    """A message that is under way; its transport tells when it starts and when it has arrived."""

    def __init__(self, work, transport, what):
        self.work, self.transport, self.what = work, transport, what
        transport.told.append(f"> {what}")

    def wait(self):
        self.work.wait()
        self.transport.told.append(f"< {self.what}")


def story(owner, act) -> list[str]:
    """What an owner with a Telling transport does in `act()`, in order; each event once in a row.

    A line "blocks.0 gradients filling" is an event of the film, "> scatter 36" starts a message
    with a row of 36 numbers, and "< scatter 36" waits for it.
    """
    with filming(owner) as film:
        opened = len(film.events)
        owner.transport.told = film.events
        act()
        owner.transport.told = []
    lines = [
        event if isinstance(event, str) else f"{event['unit']} {event['kind']} {event['state']}"
        for event in film.events[opened:]
    ]
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line != before]


UNTIED = replace(ODD, layers=1, tied=False)
ROWS = {"embedding": 396, "blocks.0": 1752, "norm": 12, "head": 396}  # its units' numbers


def told(worker, owner, micro_batches=1, config=None, transform=plain):
    """The stories of the first step of UNTIED, of the second step, and of an evaluation."""
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    recipe = Recipe(owner=partial(owner, transport=Telling), transform=transform)
    trainer = recipe(config or UNTIED, 0, mesh, micro_batches=micro_batches)
    batch = random_batch(worker.rank, 2, 8, 33)
    step, evaluation = partial(trainer.step, batch), partial(trainer.evaluate, batch)
    found = [story(trainer.owner, act) for act in (step, step, evaluation)]
    trainer.close()
    return found


def lines(text: str) -> list[str]:
    """The lines of a story, written with several in a row."""
    return [line.strip() for row in text.strip().splitlines() for line in row.split(";")]


UPDATED = [
    f"{unit} {kind} {state}"
    for state in ("updating", "held")
    for unit in ROWS
    for kind in ("parameters", "optimizer", "gradient shard")
]
BEGUN = [f"{unit} gradient shard freed" for unit in ROWS]
PUBLISHED = [f"{arrow} gather {numbers}" for arrow in "><" for numbers in ROWS.values()]
