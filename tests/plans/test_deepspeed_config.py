"""A configuration is read as DeepSpeed reads it; the bytes are tested beside DeepSpeed itself."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.plans.deepspeed_config import BATCH as DEEPSPEEDS_FIELDS
from helpers.plans.deepspeed_config import OFFLOAD, offload_rows, read

BATCH, MICRO, STEPS = DEEPSPEEDS_FIELDS


@pytest.mark.parametrize(
    ("settings", "ranks", "expected"),
    [
        ({MICRO: 3}, 4, (3, 1, 12)),
        ({BATCH: 24}, 4, (6, 1, 24)),
        ({BATCH: 24, MICRO: 3}, 4, (3, 2, 24)),
        ({BATCH: 24, STEPS: 3}, 4, (2, 3, 24)),
        ({MICRO: 2, STEPS: 5}, 3, (2, 5, 30)),
        ({BATCH: 30, MICRO: 2, STEPS: 5}, 3, (2, 5, 30)),
    ],
)
def test_two_sizes_give_the_third(settings, ranks, expected):
    found = read(settings, ranks)
    assert (found.micro_batch, found.accumulation, found.batch) == expected


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "no default"),
        ({STEPS: 2}, "no default"),
        ({BATCH: 25}, "do not agree"),
        ({BATCH: 2}, "do not agree"),
        ({BATCH: 24, MICRO: 3, STEPS: 4}, "batch 24 is not micro-batch 3 × accumulation 4 × 4"),
        ({MICRO: 0}, "at least 1, not 0"),
        ({MICRO: 2, STEPS: 0}, "at least 1, not 2 and 0"),
        ({BATCH: 8, MICRO: 0}, "at least 1, not 0"),
        ({BATCH: 8, STEPS: 0}, "at least 1, not None and 0"),
        ({BATCH: 0}, "do not agree"),
        ({MICRO: 1, "zero_optimization": {"stage": 4}}, "0 \\(none\\), 1, 2 and 3"),
        ({MICRO: 1, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "only"),
        ({MICRO: 1, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "stage 0"),
        (
            {MICRO: 1, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
            "stage 2 cannot offload the optimizer to nvme",
        ),
        ({MICRO: 1, "zero_optimization": {"offload_optimizer": {"device": "disk"}}}, "'disk'"),
        (
            {MICRO: 1, "zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}},
            "DeepSpeed offloads to cpu or nvme, not to 'disk'",
        ),
    ],
)
def test_what_deepspeed_would_refuse(settings, why):
    with pytest.raises(ValueError, match=why):
        read(settings, 4)


def test_fewer_than_one_rank():
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        read({MICRO: 1}, 0)


def test_bytes_of_each_stage():
    """1000 parameters on 4 ranks, by hand; mixed precision has 2 + 2 + 12 bytes, fp32 4 + 4 + 8."""
    mixed = {"bf16": {"enabled": True}}
    totals = [read({MICRO: 1, **mixed, "zero_optimization": {"stage": k}}, 4).states(1000).total
              for k in range(4)]  # fmt: skip
    assert totals == [16_000, 7_000, 5_500, 4_000]
    plain = [read({MICRO: 1, "zero_optimization": {"stage": k}}, 4) for k in range(4)]
    assert [found.states(1000).total for found in plain] == [16_000, 11_000, 8_000, 5_000]
    assert [found.sharded for found in plain] == [
        (),
        ("optimizer",),
        ("optimizer", "gradients"),
        ("optimizer", "gradients", "parameters"),
    ]
    assert not read({MICRO: 1, "bf16": {"enabled": False}}, 4).sixteen_bit


def test_offloaded_states_are_not_on_the_gpu():
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    found = read({MICRO: 1, "fp16": {"enabled": True}, "zero_optimization": zero}, 4)
    assert found.on_gpu(1000).total == 0
    assert found.states(1000).total == 4_000
    del zero["offload_optimizer"]
    found = read({MICRO: 1, "fp16": {"enabled": True}, "zero_optimization": zero}, 4)
    assert found.on_gpu(1000).by_kind() == {"parameters": 0, "gradients": 500, "optimizer": 3000}
    turned = {"offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"}}
    found = read({MICRO: 1, "zero_optimization": {"stage": 3, **turned}}, 4)
    assert (found.optimizer_on, found.parameters_on) == ("nvme", "cpu")
    assert found.on_gpu(1000).total == 0


@pytest.mark.parametrize(("stage", "gradients"), [(1, 2000), (2, 0), (3, 0)])
def test_gradients_leave_the_gpu_with_the_optimizer_from_stage_2_on(stage, gradients):
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    found = read({MICRO: 1, "bf16": {"enabled": True}, "zero_optimization": zero}, 4)
    assert found.on_gpu(1000).gradients == gradients
    assert found.on_gpu(1000).optimizer == 0
    assert found.on_gpu(1000).parameters == found.states(1000).parameters > 0


def test_every_field_is_explained_once():
    rows = offload_rows()
    assert len({row["field"] for row in rows}) == len(rows) == 12
    assert all(row["what it does"] and (row["needs"] or row["default"]) for row in rows)
    assert rows[-1]["field"] == "zero_force_ds_cpu_optimizer"  # of no section


def test_the_defaults_are_deepspeed_s():
    """By its source: to import DeepSpeed takes seconds."""
    if not (found := find_spec("deepspeed")):
        pytest.skip("DeepSpeed is not installed")
    folder = Path(found.origin).parent / "runtime"
    offload = (folder / "zero" / "offload_config.py").read_text("utf-8")
    _, parameters, optimizer = re.split("^class DeepSpeedZeroOffload.*$", offload, flags=re.M)
    texts = {"offload_param": parameters, "offload_optimizer": optimizer.split("\nclass ")[0]}
    texts["aio"] = (folder / "swap_tensor" / "constants.py").read_text("utf-8")
    for field, _, _, own in OFFLOAD:
        section, _, name = field.rpartition(".")
        if section in texts:
            name = "aio_" * (section == "aio") + name
            line = rf"^ *{name}(?:_default)?(?:: \S+)? = (?:Field\()?(?:pp_int\()?([^,)\n]+)"
            (default,) = re.findall(line, texts[section], re.M | re.I)[-1:]
            assert default.strip('"').lower() == (own or "none"), field
