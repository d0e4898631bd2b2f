"""DeepSpeed through the Trainer of Hugging Face Transformers, which owns the training loop."""

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from helpers.data.batch import Batch
from helpers.parallel.libraries.deepspeed_extension import deepspeed
from helpers.parallel.libraries.strategy import expect, expect_no_bias, expect_ranks
from helpers.parallel.optimizer import OptimizerConfig
from helpers.state.placing import HasSeat, whole
from helpers.state.slicing import first_values


class ForTrainer(torch.nn.Module):
    """A GPT in the form that the Trainer asks for: columns in, a dict with the loss out.

    `num_items_in_batch` is the number of targets in all micro-batches of all ranks. The Trainer
    counts it in the column "labels", and multiplies the loss by the number of ranks, because
    DeepSpeed averages over them. So each target has the same weight.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens, labels, numbers=None, num_items_in_batch=None, steps=(0,), **_):
        own = {"numbers": numbers, "step": int(steps[0])}  # for dropout
        total, count = self.model.loss(Batch(tokens=tokens, targets=labels, **own))
        return {"loss": total / (count if num_items_in_batch is None else num_items_in_batch)}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What the Trainer did on this rank.

    Attributes:
        losses: by step, as the Trainer logs them.
        wrapper, optimizer: the names of the types that hold the model and its optimizer.
        model: the trained parameters, whole, by plain name.
    """

    losses: tuple[float, ...]
    wrapper: str
    optimizer: str
    model: dict[str, torch.Tensor]


def train(
    seat: HasSeat,
    config,
    batches: Sequence[Batch],
    settings: Mapping,
    *,
    seed: int = 0,
    rule: OptimizerConfig | None = None,
    device: torch.device | str = "cpu",
) -> Trained:
    """Train on the batches in turn, one step each, by `transformers.Trainer` and DeepSpeed.

    Args:
        seat: a mesh with the axis "dp": the ranks, all of them.
        batches: global batches of one size, which the ranks divide.
        settings: DeepSpeed's; "auto" where the Trainer knows the value.

    Raises:
        ValueError: the ranks do not divide a batch evenly, or the config has a `bias_rate`.
        WrongWrapper: the Trainer's model is not DeepSpeed's engine.
        RuntimeError: DeepSpeed is not ready: see `deepspeed_extension`.
    """
    library, ranks, rule = deepspeed(device), seat.layout.world_size, rule or OptimizerConfig()
    expect_no_bias(config)
    sizes = {len(batch) for batch in batches}
    if len(sizes) != 1 or (size := sizes.pop()) % ranks:
        raise ValueError(f"the Trainer needs batches of one size that {ranks} ranks divide")
    from transformers import PrinterCallback, Trainer

    model = config.build(torch.float32, device, seed=seed)
    named = dict(model.named_parameters())
    parts = {name: whole(seat, name, p.shape) for name, p in named.items()}
    make = lambda name, shape: config.first_value(name, shape, seed)  # noqa: E731
    with torch.no_grad():
        first_values(parts, named, make)

    class WithOurRule(Trainer):
        """With DeepSpeed, the Trainer drops the argument `optimizers` and makes an AdamW."""

        def create_optimizer(self, model=None):
            self.optimizer = self.optimizer or rule.make(named, parts)
            return self.optimizer

    with tempfile.TemporaryDirectory() as folder:
        trainer = WithOurRule(
            ForTrainer(model),
            arguments(folder, settings, device, rule, size // ranks, len(batches)),
            train_dataset=[
                row for k, batch in enumerate(batches) for row in rows_of(replace(batch, step=k))
            ],
        )
        expect_ranks(trainer.accelerator.num_processes, ranks, "transformers.Trainer")
        trainer.remove_callback(PrinterCallback)  # `Trained` has the logs
        trainer.train()
    engine = expect(trainer.model_wrapped, library.DeepSpeedEngine, "transformers.Trainer")
    values = {}
    for name, p in named.items():
        with library.zero.GatheredParameters([p]):  # of stage 3; the others are whole
            values[name] = p.detach().clone()
    return Trained(
        losses=tuple(row["loss"] for row in trainer.state.log_history if "loss" in row),
        wrapper=type(engine).__name__,
        optimizer=type(engine.optimizer).__name__,
        model=values,
    )


def arguments(folder: str, settings: Mapping, device, rule: OptimizerConfig, rows: int, steps: int):
    """The TrainingArguments: each of `steps` steps has `rows` sequences of a rank, in order."""
    from transformers import TrainingArguments

    cpu = torch.device(device).type == "cpu"
    return TrainingArguments(
        folder,
        deepspeed=copy.deepcopy(dict(settings)),
        use_cpu=cpu,  # without it, the Trainer counts one rank on a CPU
        dataloader_pin_memory=not cpu,
        per_device_train_batch_size=rows,
        max_steps=steps,
        train_sampling_strategy="sequential",
        learning_rate=rule.lr,
        lr_scheduler_type="constant",
        max_grad_norm=rule.clip or 0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        log_level="error",
        log_level_replica="error",
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def rows_of(batch: Batch) -> list[dict]:
    """The sequences of a batch, as the Trainer's rows."""
    columns = {"tokens": batch.tokens, "labels": batch.targets, "numbers": batch.numbers}
    columns["steps"] = torch.full_like(batch.numbers, batch.step)
    return [{name: column[k] for name, column in columns.items()} for k in range(len(batch))]
