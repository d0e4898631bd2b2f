"""DeepSpeed's settings are completed for a training beside its twin, and never changed."""

import copy

import pytest

from helpers.parallel.libraries.deepspeed_settings import BUCKET, completed
from helpers.parallel.optimizer import OptimizerConfig

RULE = OptimizerConfig(clip=0.5)


def test_what_is_left_out_is_filled_in():
    full = completed({}, RULE, 3, 2)
    assert full["gradient_accumulation_steps"] == 3
    assert full["gradient_clipping"] == 0.5
    assert full["train_micro_batch_size_per_gpu"] == 1
    assert full["zero_optimization"] == {
        "stage": 2,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
    }
    assert full["zero_allow_untested_optimizer"]
    assert not full["zero_force_ds_cpu_optimizer"]
    assert completed({}, OptimizerConfig(clip=None), 1, 0)["gradient_clipping"] == 0


def test_what_is_there_stays_and_the_caller_s_settings_too():
    given = {"zero_optimization": {"stage": 1, "reduce_bucket_size": 7}, "train_batch_size": 6}
    given |= {"zero_allow_untested_optimizer": False, "zero_force_ds_cpu_optimizer": True}
    before = copy.deepcopy(given)
    full = completed(given, RULE, 3, 2)
    assert given == before
    assert full["zero_optimization"]["stage"] == 1
    assert full["zero_optimization"]["reduce_bucket_size"] == 7
    assert "train_micro_batch_size_per_gpu" not in full
    rows = {"train_micro_batch_size_per_gpu": 5}
    assert completed(rows, RULE, 3, 2)["train_micro_batch_size_per_gpu"] == 5
    assert not full["zero_allow_untested_optimizer"]
    assert full["zero_force_ds_cpu_optimizer"]


@pytest.mark.parametrize(
    "given", [{"gradient_accumulation_steps": 2}, {"gradient_clipping": 0.4}], ids=str
)
def test_what_contradicts_the_arguments_is_refused(given):
    [(field, value)] = given.items()
    with pytest.raises(ValueError, match=f"{field} = {value}, and the strategy's"):
        completed(given, RULE, 3, 2)
