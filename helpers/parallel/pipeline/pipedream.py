"""PipeDream: 1F1B without a flush. Each micro-batch is an update of its own, from stale weights.

A demonstration: it is outside the one training step of the Trainer, because its updates are not
those of a single process. Stage r of p computes with weights that lack the last p - 1 - r updates.
**Weight stashing**: a micro-batch's backward uses the weights of its forward. So a stage keeps up
to p - r versions of its weights. Plain SGD, to keep it short.

Source: Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN training",
SOSP, section 3.3. 1F1B with a flush is a later paper of the same authors: arXiv:2006.09503.
"""

from collections.abc import Sequence

import torch
from torch.func import functional_call

from helpers.comm.mesh import Mesh
from helpers.comm.point_to_point import Buffers, between_neighbours
from helpers.data.batch import Batch
from helpers.parallel.pipeline.execution import Execution
from helpers.parallel.pipeline.stages import AXIS, pipeline
from helpers.plans.schedules import FORWARD, Action, one_f_one_b

Weights = dict[str, torch.Tensor]


def pipedream(
    mesh: Mesh,
    config,
    batches: Sequence[Batch],
    *,
    lr: float,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict:
    """Train on each batch once, with asynchronous 1F1B over the axis "pp". Every rank calls it.

    Args:
        config: of a GPT without tied embeddings and without experts' losses.
        batches: all of one shape, the same on every rank.

    Returns:
        losses: of each batch, before its update; only on the last stage, else [].
        staleness: of each batch, how many updates this stage's weights lacked.
        versions: the most versions of the weights that this rank kept at one time.
        bytes: of these versions together; and `one_version`: of one.
        weights: the last version, by plain name.

    Raises:
        ValueError: the embedding is tied; experts have a loss or a moving bias; or the batches
            differ in shape.
    """
    if config.tied:
        raise ValueError("PipeDream's stages update apart: use a config with tied=False")
    if config.experts and config.experts.regulated:
        raise ValueError("PipeDream here sends no experts' losses: all their rates must be 0")
    if len({batch.tokens.shape for batch in batches}) != 1:
        raise ValueError("PipeDream here needs batches of one shape")
    schedule = one_f_one_b(mesh.size(AXIS), len(batches))
    model = pipeline(config, seed, mesh, dtype, schedule=schedule).model
    (stage,) = model.to_empty(device="cpu").values()
    weights = {
        name: config.first_value(stage.plain_name(name), p.shape, seed).to(dtype).requires_grad_()
        for name, p in stage.named_parameters()
    }
    work = Stashing(stage, weights, batches, lr)
    buffers = Buffers(torch.Size(work.shape(0)).numel(), dtype, "cpu")
    Execution(schedule, between_neighbours(mesh, AXIS)).run(work, buffers)
    one_version = sum(w.nbytes for w in weights.values())
    return {
        "losses": work.losses,
        "staleness": work.staleness,
        "versions": work.most,
        "bytes": work.most * one_version,
        "one_version": one_version,
        "weights": {stage.plain_name(n): w.detach() for n, w in work.weights.items()},
    }


class Stashing:
    """One stage that updates after each backward, for an Execution.

    Attributes:
        weights: the newest version. An update makes new tensors, so older versions stay as they
            are, as long as a micro-batch needs them.
    """

    def __init__(self, stage: torch.nn.Module, weights: Weights, batches: Sequence[Batch], lr):
        self.stage, self.weights, self.batches, self.lr = stage, weights, batches, lr
        self.updates, self.most = 0, 1
        self.stash: dict[int, tuple] = {}  # micro-batch -> its version, weights, input, output
        self.losses: list[float] = []
        self.staleness: list[int] = []

    def shape(self, micro: int) -> tuple[int, ...]:
        return (*self.batches[micro].tokens.shape, self.stage.config.width)

    def compute(self, action: Action, given: torch.Tensor | None) -> torch.Tensor | None:
        run = self.forward if action.kind == FORWARD else self.backward
        return run(action.micro, given)

    def forward(self, micro: int, given: torch.Tensor | None):
        batch = self.batches[micro]
        x = batch.tokens if given is None else given.detach().requires_grad_()
        positions = self.stage.locate(batch.tokens, **batch.located())
        y = functional_call(self.stage, self.weights, (x, positions))
        if self.stage.last:
            total, count = self.stage.criterion(y, batch.targets)
            y = total / count.clamp(min=1)
            self.losses.append(y.item())
        self.stash[micro] = self.updates, self.weights, x, y
        kept = {version for version, *_ in self.stash.values()}  # the newest is among them
        self.most = max(self.most, len(kept))
        return None if self.stage.last else y.detach()

    def backward(self, micro: int, given: torch.Tensor | None):
        version, weights, x, y = self.stash.pop(micro)
        self.staleness.append(self.updates - version)
        leaves = list(weights.values()) + [x] * (not self.stage.first)
        gradients = torch.autograd.grad(y, leaves, given)
        self.weights = {
            name: (newest.detach() - self.lr * gradient).requires_grad_()
            for (name, newest), gradient in zip(self.weights.items(), gradients, strict=False)
        }
        self.updates += 1
        return None if self.stage.first else gradients[-1].contiguous()
