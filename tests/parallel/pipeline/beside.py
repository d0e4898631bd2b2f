"""Hold a recipe beside one process, on ranks that live across the examples of a test file."""

from dataclasses import replace

import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.recipe import Recipe
from helpers.parallel.single import Single

TOLERANCE = 1e-12  # absolute, in float64: sums over ranks and micro-batches add in another order
STEPS = 2
RULE = OptimizerConfig(clip=0.1)  # it clips: the first norms are larger


def batches(config, sequences, ignored=0.1):
    for k in range(STEPS + 1):
        yield replace(random_batch(k, sequences, config.context, config.vocab, ignored), step=k)


def record(config, sequences, recipe=None, **options):
    """What one process gets: (loss, norm, gradients, parameters) of each step."""
    torch.set_num_threads(1)
    twin = Single(config, dtype=torch.float64, optimizer=RULE)
    found = []
    for batch in batches(config, sequences, **options):
        step = twin.step(batch)
        state = twin.full_state()
        found.append((step.loss, step.grad_norm, twin.full_gradients(), state["model"]))
    held_out = random_batch(99, 3, config.context, config.vocab)
    return found, twin.evaluate(held_out), state


def differences(worker, recipe, config, sequences, micro_batches, twin, **options):
    """The largest differences of this rank from the record, over all steps and after a load."""
    torch.set_num_threads(1)
    mesh = make_mesh(recipe.layout)
    make = lambda: recipe(  # noqa: E731
        config, 0, mesh, dtype=torch.float64, optimizer=RULE, micro_batches=micro_batches
    )
    trainer, worst = make(), {}
    steps, (loss, count), _ = twin
    for k, batch in enumerate(batches(config, sequences, **options)):
        if k == STEPS:
            saved = trainer.full_state()
            trainer.close()
            trainer = make()
            trainer.load(saved)
        step = trainer.step(batch.shard(trainer.data_rank, trainer.data_size))
        record = steps[k]
        got = (step.loss, step.grad_norm, trainer.full_gradients(), trainer.full_state()["model"])
        for name, ours, theirs in zip(("loss", "norm", "gradient", "parameter"), got, record,
                                      strict=True):  # fmt: skip
            worst[name] = largest([worst.get(name, 0.0), apart(ours, theirs)])
    held_out = random_batch(99, 3, config.context, config.vocab)
    here = trainer.evaluate(held_out.shard(trainer.data_rank, trainer.data_size))
    assert trainer.model.training  # again, for the next step's dropout
    worst["evaluation"] = abs(here[0] - loss) + abs(here[1] - count)
    trainer.close()
    return worst


def apart(ours, theirs) -> float:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        return largest([apart(ours[name], theirs[name]) for name in ours])
    return float((ours - theirs).abs().max())


def largest(values: list[float]) -> float:
    """The largest value; NaN if there is one, which `max` may lose."""
    return next((value for value in values if value != value), max(values))


def on_ranks(cluster, recipe, config, *, sequences=5, micro_batches=4, twin=None, **options):
    """Train on the cluster's ranks beside one process; assert that every rank agrees."""
    twin = twin or record(config, sequences, **options)
    assert twin[0][0][1] > RULE.clip, "the clipping does nothing"
    runs = cluster.run(
        differences,
        recipe=recipe,
        config=config,
        sequences=sequences,
        micro_batches=micro_batches,
        twin=twin,
        **options,
    )
    for rank, worst in enumerate(runs):
        assert all(value <= TOLERANCE for value in worst.values()), (rank, worst)


def recipe_of(schedule, owner=None, transform=None, precision=None, **sizes) -> Recipe:
    seams = {"owner": owner, "transform": transform, "precision": precision}
    seams = {name: seam for name, seam in seams.items() if seam is not None}
    return Recipe(layout=Layout(**sizes), schedule=schedule, **seams)
