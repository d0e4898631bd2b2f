"""Groups, formats and gradients that FusedAdamW has to keep apart, beside torch.optim.AdamW."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")

from helpers.precision.fused_adam.launch import formats
from helpers.precision.fused_adam.optimizer import FusedAdamW
from tests.precision.fused_adam.test_optimizer import assert_same, give_gradients, make

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float32, torch.float16)


def mixed():
    return [make([3 + place], kind, seed=place)[0] for place, kind in enumerate(KINDS)]


def test_parameters_of_several_formats_in_one_group():
    mine, others = mixed(), mixed()
    ours, theirs = FusedAdamW(mine, lr=0.01), torch.optim.AdamW(others, lr=0.01, fused=True)
    for step in range(2):
        give_gradients(step, mine, others)
        ours.step()
        theirs.step()
    assert_same(ours, theirs, mine, others)


def test_master_copies_only_of_what_is_narrow():
    mine = mixed()
    ours = FusedAdamW(mine, master_copies=True)
    give_gradients(0, mine)
    ours.step()
    for p, kind in zip(mine, KINDS, strict=True):
        narrow = kind in (torch.bfloat16, torch.float16)
        assert p.dtype == kind
        assert ("master" in ours.state[p]) == narrow
        assert ours.state[p]["exp_avg"].dtype == (torch.float32 if narrow else kind)


def test_groups_of_one_format_keep_their_tables():
    """The same tensors at each step: nothing but the learning rate of one group is sent again."""
    first, second = make([3]), make([5])
    ours = FusedAdamW([{"params": first}, {"params": second}])
    give_gradients(0, first)
    give_gradients(0, second)
    for rate in (1e-3, 1e-3, 0.5):
        ours.param_groups[1]["lr"] = rate
        ours.step()
    assert sorted(table.uploads for table in ours._tables.values()) == [3, 4]


def test_a_gradient_whose_numbers_share_one_place():
    mine, others = make([6]), make([6])
    ours, theirs = FusedAdamW(mine, lr=0.1), torch.optim.AdamW(others, lr=0.1)
    shared = torch.full((1,), 0.5)
    for p in (*mine, *others):
        p.grad = shared.expand(6)
    ours.step()
    theirs.step()
    assert_same(ours, theirs, mine, others)
    assert shared.item() == 0.5


def test_what_the_kernel_computes_in():
    for kind in KINDS:
        made = formats(kind, kind, kind)
        assert str(made["C"]) == ("fp64" if kind is torch.float64 else "fp32")
        assert made["P"] == made["G"] == made["S"]
    made = formats(torch.float32, torch.bfloat16, torch.float64, torch.float16)
    assert [str(made[name]) for name in ("P", "G", "S", "LOW", "C")] == [
        "fp32", "bf16", "fp64", "fp16", "fp32",
    ]  # fmt: skip


def test_the_options_are_those_of_torch():
    given = (0.1, (0.5, 0.6), 0.7, 0.8)
    ours = FusedAdamW(make([1]), *given, maximize=True)
    theirs = torch.optim.AdamW(make([1]), *given, maximize=True)
    assert ours.defaults == theirs.defaults
    assert FusedAdamW(make([1])).defaults == torch.optim.AdamW(make([1])).defaults
