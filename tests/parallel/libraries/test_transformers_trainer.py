"""DeepSpeed through the Trainer of Transformers: each target has the same weight."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout, make_mesh
from helpers.data.batch import random_batch
from helpers.models.settings import ExpertSettings
from helpers.parallel.libraries.transformers_trainer import ForTrainer, arguments, rows_of, train
from helpers.parallel.optimizer import OptimizerConfig
from helpers.parallel.single import Single
from helpers.runtime.launch import launch
from tests.parallel.libraries.test_deepspeed_zero import SGD, STRICT, TINY, apart, zero

AUTO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
}
BATCHES = [random_batch(k, 4, TINY.context, TINY.vocab, ignored=0.2) for k in range(3)]


def test_the_loss_is_divided_by_the_targets_that_the_trainer_counts():
    model = TINY.build(torch.float64, "cpu", seed=0)
    batch = random_batch(0, 3, TINY.context, TINY.vocab, ignored=0.3)
    total, count = model.loss(batch)
    columns = {"tokens": batch.tokens, "labels": batch.targets, "numbers": batch.numbers}
    found = [ForTrainer(model)(**columns, num_items_in_batch=n, other=1) for n in (None, 7)]
    assert [one["loss"] for one in found] == [total / count, total / 7]


def test_the_rows_are_the_batch_s_sequences():
    batch = replace(random_batch(0, 3, TINY.context, TINY.vocab), numbers=torch.tensor([5, 3, 9]))
    rows = rows_of(batch)
    assert len(rows) == 3
    for name, whole in {"tokens": batch.tokens, "labels": batch.targets}.items():
        assert torch.equal(torch.stack([row[name] for row in rows]), whole)
    assert [row["numbers"] for row in rows] == [5, 3, 9]


def asked(worker, folder, settings):
    """The Trainer's own view of our arguments, and whether our settings stayed as they were."""
    torch.set_num_threads(1)
    before = repr(settings)
    found = []
    for rule in (OptimizerConfig(lr=0.25, clip=0.125), OptimizerConfig(clip=None)):
        made = arguments(folder, settings, "cpu", rule, 3, 7)
        fields = ("learning_rate", "max_grad_norm", "per_device_train_batch_size", "max_steps",
                  "train_sampling_strategy", "lr_scheduler_type", "use_cpu", "save_strategy",
                  "report_to", "logging_steps", "remove_unused_columns", "dataloader_pin_memory",
                  "disable_tqdm", "warmup_steps", "weight_decay")  # fmt: skip
        found.append({name: getattr(made, name) for name in fields})
    made.deepspeed["zero_optimization"]["stage"] = 9
    assert repr(settings) == before
    return found


def by_trainer(worker) -> dict:
    torch.set_num_threads(1)
    mesh = make_mesh(Layout(dp=worker.world_size))
    config = replace(TINY, dropout=0.1)
    one = Single(config, 1, optimizer=SGD)
    losses = [float(one.step(replace(batch, step=k)).loss) for k, batch in enumerate(BATCHES)]
    found = {}
    ways = {2: zero(2, reduce_bucket_size=50_000), 3: {"zero_optimization": STRICT}}
    for stage, settings in ways.items():
        done = train(mesh, config, BATCHES, AUTO | settings, rule=SGD, seed=1)
        far = apart(done.model, one.full_state()["model"])
        off = max(abs(a - b) for a, b in zip(done.losses, losses, strict=True))
        found[stage] = {"far": far, "loss": off, "types": (done.wrapper, done.optimizer)}
    moving = replace(TINY, experts=ExpertSettings(count=2, bias_rate=0.1))
    for name, (config, batches) in {
        "uneven": (TINY, [random_batch(0, 3, 8, 33)]),
        "two sizes": (TINY, [random_batch(0, rows, 8, 33) for rows in (4, 2)]),
        "moving": (moving, BATCHES),
    }.items():
        try:
            train(mesh, config, batches, AUTO)
        except ValueError as error:
            found[name] = str(error)
    return found


def everything(worker, folder) -> dict:
    """In one process per rank: the imports take longer than the training."""
    settings = AUTO | zero(2, reduce_bucket_size=50_000)
    return {"asked": asked(worker, folder, settings), "trained": by_trainer(worker)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("trainer"))
    return launch(everything, 2, device="cpu", timeout=300, folder=folder)


def test_the_trainer_gets_our_rule_and_steps(runs):
    same = {
        "per_device_train_batch_size": 3, "max_steps": 7, "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant", "use_cpu": True, "save_strategy": "no", "report_to": [],
        "logging_steps": 1, "remove_unused_columns": False, "dataloader_pin_memory": False,
        "disable_tqdm": True, "warmup_steps": 0, "weight_decay": 0.0,
    }  # fmt: skip
    for clipped, free in runs.column("asked"):
        assert clipped == same | {"learning_rate": 0.25, "max_grad_norm": 0.125}
        assert free == same | {"learning_rate": 1e-3, "max_grad_norm": 0.0}  # no clipping


def test_it_trains_like_one_process(runs):
    for run in runs.column("trained"):
        assert run[2]["types"] == ("DeepSpeedEngine", "DeepSpeedZeroOptimizer")
        assert run[3]["types"] == ("DeepSpeedEngine", "DeepSpeedZeroOptimizer_Stage3")
        for stage in (2, 3):
            assert run[stage]["far"] < 2e-6
            assert run[stage]["loss"] < 2e-6
        assert "2 ranks divide" in run["uneven"]
        assert "batches of one size" in run["two sizes"]
        assert "use bias_rate=0" in run["moving"]
