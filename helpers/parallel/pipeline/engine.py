"""The pipeline's engine: run any valid schedule of forwards and backwards on this rank's stages."""

from collections import Counter
from functools import cached_property

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from helpers.comm.point_to_point import Buffers, between_neighbours
from helpers.data.batch import Batch
from helpers.parallel.engines.in_turn import Watched
from helpers.parallel.owners.local import Local
from helpers.parallel.pipeline.backward import Share, TwoParts, second
from helpers.parallel.pipeline.execution import Execution
from helpers.parallel.pipeline.stages import AXIS, Stages
from helpers.parallel.units import units
from helpers.parallel.world import GlobalSum
from helpers.plans.schedules import BACKWARD, FORWARD, INPUT, Action
from helpers.plans.schedules.times import Span


class Pipeline:
    """Run this rank's stages by the schedule of the transform `pipeline`.

    All ranks of a pipeline get the same batch. The first stage uses its tokens, the last stage its
    targets, and all stages its sequences' numbers, for dropout.

    Args:
        model: from `pipeline`.
        owner: of the model's parameters.

    Raises:
        ValueError: from `step`, if the number of micro-batches is not the schedule's, or if a batch
            does not fit the buffers of the first step.
    """

    def __init__(self, model: Stages, owner: Local):
        self.model, self.owner, self.schedule = model, owner, model.schedule
        self.link = between_neighbours(model.mesh, AXIS)
        self.execution = Execution(self.schedule, self.link)
        self.stages = {int(name): stage for name, stage in model.items()}
        self.last = self.schedule.stages - 1
        self.sample = next(model.parameters())  # of the dtype and device of all activations
        self.names = {p: name for name, p in owner.parameters.items()}
        self.uses = Counter(p for s in self.stages.values() for p in s.parameters())
        self.left: Counter = Counter()  # parameter -> gradients that this step still adds
        self.buffers: Buffers | None = None
        self.hooks = []
        if "gradients" in owner.wants:
            for p in self.uses:
                if p.requires_grad:
                    hook = p.register_post_accumulate_grad_hook(self.gradient_came)
                    self.hooks.append(hook)
        self.watched: dict[int, list[Watched]] = {stage: [] for stage in self.stages}
        for unit in units(model) if "units" in owner.wants else ():
            self.watched[int(unit.name.split(".")[0])].append(Watched(unit, owner))

    @cached_property
    def two_parts(self) -> dict[int, TwoParts]:
        """The stages with a divided backward.

        No stage waits for a gradient of the first stage's input. And a block that is recomputed
        would have to keep for later what recomputation frees. Their backward is whole.
        """
        if not self.schedule.split:
            return {}
        whole = {number for number, s in self.stages.items() if s.config.recompute == "full"}
        return {n: TwoParts(s) for n, s in self.stages.items() if n and n not in whole}

    @property
    def spans(self) -> list[Span]:
        """When this rank's computations of the last step ran. Draw it beside `timeline`'s spans."""
        return self.execution.spans

    def gradient_came(self, parameter: torch.nn.Parameter):
        self.left[parameter] -= 1
        self.owner.gradient(self.names[parameter], self.left[parameter] == 0)

    def step(self, micro_batches: list[Batch], tokens: GlobalSum, loss: GlobalSum):
        """As InTurn's."""
        m = self.schedule.micro_batches
        if len(micro_batches) != m:
            raise ValueError(
                f"the schedule has {m} micro-batches, but the Trainer cuts its batch into "
                f"{len(micro_batches)}: use micro_batches={m}"
            )
        self.left = Counter({p: m * uses for p, uses in self.uses.items()})
        for watched in self.watched.values():
            for one in watched:
                one.forget()
        self.execution.run(OneStep(self, micro_batches, tokens, loss), self.fitting(micro_batches))
        loss.send()  # overlaps the owner's sums and the update

    def fitting(self, micro_batches: list[Batch]) -> Buffers:
        """The buffers of all messages, made at the first step.

        Raises:
            ValueError: a micro-batch does not fit.
        """
        largest = micro_batches[0]  # no other has more sequences: see Batch.micro
        if self.buffers is None:
            self.largest = tuple(largest.tokens.shape)
            numel = torch.Size(self.message_shape(largest)).numel()
            self.buffers = Buffers(numel, self.sample.dtype, self.sample.device)
        sequences, length = self.largest
        if len(largest) > sequences or largest.tokens.shape[1] != length:
            raise ValueError(
                f"a micro-batch has {len(largest)} sequences of {largest.tokens.shape[1]} tokens, "
                f"but this pipeline's buffers are for at most {sequences} sequences of {length} "
                "tokens, as in the first step: keep the shape, or make a new Trainer"
            )
        return self.buffers

    def message_shape(self, batch: Batch) -> tuple[int, int, int]:
        """(B, T, D) between two stages; with sequence parallelism this rank's tokens only."""
        stage = next(iter(self.stages.values()))
        tokens = stage.locate(batch.tokens).places.shape[-1]
        return len(batch), tokens, stage.config.width

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the forward of the whole batch; only the last stage has a loss and a count."""
        training, found = self.model.training, (torch.zeros(()), torch.zeros(()))
        placement, given = self.schedule.placement, None
        self.model.eval()
        try:
            for stage, module in self.stages.items():
                if stage and placement[stage - 1] != self.link.rank:
                    given = self.sample.new_empty(self.message_shape(batch))
                    if message := self.link.receive(given, placement[stage - 1]):
                        message.wait()
                made = forward(module, batch, given)
                if stage == self.last:
                    found = module.criterion(made, batch.targets)
                elif placement[stage + 1] != self.link.rank:
                    self.link.send(made.contiguous(), placement[stage + 1])
                given = made
            self.link.finish()
            return found
        finally:
            self.model.train(training)

    def close(self):
        for hook in self.hooks:
            hook.remove()
        for watched in self.watched.values():
            for one in watched:
                one.close()


class OneStep:
    """What a pipeline computes in one step, for an Execution."""

    def __init__(self, engine: Pipeline, batches: list[Batch], tokens: GlobalSum, loss: GlobalSum):
        self.engine, self.batches, self.tokens, self.loss = engine, batches, tokens, loss
        self.inputs: dict[tuple[int, int], torch.Tensor | None] = {}  # by (stage, micro-batch)
        self.outputs: dict[tuple[int, int], GradientEdge] = {}
        self.two_parts = engine.two_parts
        self.kept: dict[tuple[int, int], list[Share]] = {}  # for the second part of a backward
        self.gradients: dict[int, torch.Tensor | None] = {}  # of the first stage's outputs

    def shape(self, micro: int) -> tuple[int, ...]:
        return self.engine.message_shape(self.batches[micro])

    def compute(self, action: Action, given: torch.Tensor | None) -> torch.Tensor | None:
        if action.kind == FORWARD:
            return self.forward(action.stage, action.micro, given)
        if action.kind == BACKWARD:
            return self.backward(action.stage, action.micro, given)
        if action.kind == INPUT:
            return self.input_gradient(action.stage, action.micro, given)
        return self.weight_gradients(action.stage, action.micro)

    def forward(self, stage: int, micro: int, given: torch.Tensor | None):
        x = None if given is None else given.detach().requires_grad_()
        module, batch = self.engine.stages[stage], self.batches[micro]
        y, extra = forward(module, batch, x), module.extra()
        self.inputs[stage, micro] = x
        if stage < self.engine.last:
            if isinstance(extra, torch.Tensor):
                y = Beside.apply(y, self.mean(extra))
            # The edge alone is enough for the backward: the output is freed when it has left.
            self.outputs[stage, micro] = get_gradient_edge(y)
            return y.detach().contiguous()
        total, _ = module.criterion(y, batch.targets)
        self.outputs[stage, micro] = get_gradient_edge(self.mean(total + extra))
        return None

    def mean(self, total: torch.Tensor) -> torch.Tensor:
        """What the backward starts from, of a summed loss of this rank, which it adds."""
        self.loss.add(total.detach())
        scale = self.engine.owner.precision.loss_scale
        return scale * total / self.tokens.wait().clamp(min=1)

    def backward(self, stage: int, micro: int, given: torch.Tensor | None):
        x, edge = self.inputs.pop((stage, micro)), self.outputs.pop((stage, micro))
        torch.autograd.backward([edge], [self.start(given)])
        self.end(stage)
        return None if x is None else x.grad.contiguous()

    def input_gradient(self, stage: int, micro: int, given: torch.Tensor | None):
        if not stage:  # W is the whole backward
            self.gradients[micro] = given
            return None
        if stage not in self.two_parts:  # I is the whole backward
            return self.backward(stage, micro, given)
        x, edge = self.inputs.pop((stage, micro)), self.outputs.pop((stage, micro))
        first = self.two_parts[stage].first
        gradient, self.kept[stage, micro] = first(edge, x, self.start(given))
        self.end(stage)
        return gradient.contiguous()

    def weight_gradients(self, stage: int, micro: int):
        if not stage:
            self.backward(stage, micro, self.gradients.pop(micro))
            return
        if stage not in self.two_parts:
            return
        for one in self.engine.watched[stage]:
            one.begin()
        for p in second(self.kept.pop((stage, micro))):
            if self.engine.hooks:
                self.engine.gradient_came(p)
        self.end(stage)

    def start(self, given: torch.Tensor | None) -> torch.Tensor:
        """The gradient to start from: of the stage's output, or 1 for the loss itself."""
        if given is None:
            return torch.ones((), dtype=torch.float64, device=self.engine.sample.device)
        return given

    def end(self, stage: int):
        for watched in self.engine.watched[stage]:
            watched.end()


class Beside(torch.autograd.Function):
    """An activation, and a stage's own loss beside it: one backward of both."""

    @staticmethod
    def forward(ctx, y, loss):
        ctx.like = loss.new_ones(())
        return y.view_as(y)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, ctx.like


def forward(module: torch.nn.Module, batch: Batch, x: torch.Tensor | None) -> torch.Tensor:
    """Run one stage: tokens or an activation in, an activation or logits out."""
    positions = module.locate(batch.tokens, **batch.located())
    return module(batch.tokens if module.first else x, positions)
