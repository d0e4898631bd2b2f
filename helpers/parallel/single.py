"""One process, the whole model, the whole batch: the twin that every strategy is held against."""

import torch

from helpers.data.batch import Batch
from helpers.models.gpt import GPTConfig, build, loss_sum
from helpers.parallel.optimizer import (
    OptimizerConfig,
    clip,
    load_optimizer_state,
    optimizer_state,
    set_lr,
)
from helpers.parallel.strategy import Step, Strategy


class Single(Strategy):
    """Training without any parallelism.

    Args:
        config, seed: the model and its first parameters.
        mesh: None; here because every strategy takes one.
        dtype, device: of the parameters.
        optimizer: the update rule.
        micro_batches: into how many parts a batch is cut, one after another, to save activations.
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int = 0,
        mesh=None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        optimizer: OptimizerConfig | None = None,
        micro_batches: int = 1,
    ):
        self.config = config
        self.rule = optimizer or OptimizerConfig()
        self.micro_batches = micro_batches
        self.model = build(config, seed, dtype=dtype, device=device)
        self.device = torch.device(device)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = self.rule.make(self.parameters)

    def step(self, batch: Batch, lr: float | None = None) -> Step:
        self.optimizer.zero_grad()
        tokens = batch.counted()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro in batch.to(self.device).micro(self.micro_batches):
            loss, _ = loss_sum(self.model(micro.tokens), micro.targets)
            (loss / max(tokens, 1)).backward()
            total += loss.detach()
        norm = clip(self.parameters.values(), self.rule.clip)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        return Step(loss=total / max(tokens, 1), grad_norm=norm, tokens=tokens)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        batch = batch.to(self.device)
        loss, count = loss_sum(self.model(batch.tokens), batch.targets)
        return float(loss), int(count)

    def full_gradients(self):
        return {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}

    def full_state(self):
        model = {name: p.detach().clone() for name, p in self.parameters.items()}
        return {"model": model, "optimizer": optimizer_state(self.optimizer, self.parameters)}

    @torch.no_grad()
    def load(self, state):
        for name, p in self.parameters.items():
            p.copy_(state["model"][name])
        load_optimizer_state(self.optimizer, self.parameters, state["optimizer"])
