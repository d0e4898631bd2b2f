"""One process, the whole model, the whole batch: the twin for comparing every strategy."""

from helpers.parallel.trainer import Recipe, Trainer


class Single(Trainer):
    """Train without any parallelism: the empty recipe.

    Args: as for Trainer.
    """

    def __init__(self, config, seed: int = 0, mesh=None, **options):
        super().__init__(Recipe(), config, seed, mesh, **options)
