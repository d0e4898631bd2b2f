"""Train recipes beside one process, many in one launch, and report how far they are from it."""

from dataclasses import dataclass, field, replace

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.gpt import GPTConfig
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.recipe import Recipe, plain
from helpers.training.differences import farthest
from tests.parallel.pipeline.beside import largest

ODD = GPTConfig(vocab=33, context=8, width=12, layers=2, heads=2)  # no world divides its rows
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
