"""Stage 3: a unit is gathered when it is used, one unit ahead, and freed after its use.

That it equals one process: tests/parallel/test_strategies.py, the cases whose names begin with "3".
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from helpers.models.gpt import GPT, GPTConfig
from helpers.parallel.zero.stage3 import Zero3
from helpers.runtime.launch import launch
from tests.parallel.beside import frozen
from tests.parallel.zero.beside import BEGUN, UNTIED, UPDATED, lines, told

pytestmark = [
    pytest.mark.usefixtures("kept_ranks"),
    pytest.mark.filterwarnings("ignore:ZeRO stage"),
]
KEPT = partial(Zero3, reshard_after_forward=False)


FORWARD = """
    > gather 396; embedding gathered gathering; < gather 396; embedding gathered in use
    > gather 1752; blocks.0 gathered gathering; embedding gathered freed
    < gather 1752; blocks.0 gathered in use
    > gather 12; norm gathered gathering; blocks.0 gathered freed
    < gather 12; norm gathered in use
    > gather 396; head gathered gathering; norm gathered freed
    < gather 396; head gathered in use; head gathered freed
"""
BACKWARD = """
    > gather 396; head gathered gathering; < gather 396; head gathered in use
    > gather 12; norm gathered gathering
    head gradients filling; head gathered freed; head gradients sending; > scatter 396
    < scatter 396; head gradients freed; head gradient shard held
    < gather 12; norm gathered in use; > gather 1752; blocks.0 gathered gathering
    norm gradients filling; norm gathered freed; norm gradients sending; > scatter 12
    < scatter 12; norm gradients freed; norm gradient shard held
    < gather 1752; blocks.0 gathered in use; > gather 396; embedding gathered gathering
    blocks.0 gradients filling; blocks.0 gathered freed; blocks.0 gradients sending
    > scatter 1752; < scatter 1752; blocks.0 gradients freed; blocks.0 gradient shard held
    < gather 396; embedding gathered in use
    embedding gradients filling; embedding gathered freed; embedding gradients sending
    > scatter 396; < scatter 396; embedding gradients freed; embedding gradient shard held
"""
# a forward that does not know the order of the units yet
FIRST = """
    > gather 396; embedding gathered gathering; < gather 396; embedding gathered in use
    embedding gathered freed
    > gather 1752; blocks.0 gathered gathering; < gather 1752; blocks.0 gathered in use
    blocks.0 gathered freed
    > gather 12; norm gathered gathering; < gather 12; norm gathered in use; norm gathered freed
    > gather 396; head gathered gathering; < gather 396; head gathered in use; head gathered freed
"""


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_unit_is_gathered_while_the_one_before_it_computes(recompute):
    """A recomputed forward and its backward share one gather."""
    config = replace(UNTIED, recompute=recompute)
    for first, step, evaluation in launch(told, 3, device="cpu", owner=Zero3, config=config):
        assert step == BEGUN + lines(FORWARD) + lines(BACKWARD) + UPDATED
        assert first[len(BEGUN) :][: len(lines(FIRST))] == lines(FIRST)
        assert evaluation == lines(FORWARD)


KEPT_FORWARD = """
    > gather 396; embedding gathered gathering; < gather 396; embedding gathered in use
    > gather 1752; blocks.0 gathered gathering; < gather 1752; blocks.0 gathered in use
    > gather 12; norm gathered gathering; < gather 12; norm gathered in use
    > gather 396; head gathered gathering; < gather 396; head gathered in use
"""
KEPT_BACKWARD = """
    head gathered freed; > scatter 396; norm gathered in use; norm gathered freed; > scatter 12
    < scatter 396; blocks.0 gathered in use; blocks.0 gathered freed; > scatter 1752
    < scatter 12; embedding gathered in use; embedding gathered freed; > scatter 396
    < scatter 1752; < scatter 396
"""


def moved(story: list[str]) -> list[str]:
    """The messages of a story, and what it gathers and frees."""
    return [line for line in story if "gather" in line or "scatter" in line]


def test_units_that_are_kept_stay_from_their_forward_to_their_backward():
    """One row flies, because the backward frees parameters. An evaluation keeps nothing."""
    for _, step, evaluation in launch(told, 3, device="cpu", owner=KEPT):
        assert moved(step) == lines(KEPT_FORWARD) + lines(KEPT_BACKWARD)
        assert evaluation == lines(FORWARD)
    waiting = partial(KEPT, in_flight=0)
    for _, step, _ in launch(told, 3, device="cpu", owner=waiting):
        sent = [line for line in step if "scatter" in line]
        assert sent == [f"{arrow} scatter {n}" for n in (396, 12, 1752, 396) for arrow in "><"]


TIED = """
    > gather 396; embedding gathered gathering; < gather 396; embedding gathered in use
    > gather 1752; blocks.0 gathered gathering; < gather 1752; blocks.0 gathered in use
    > gather 12; norm gathered gathering; blocks.0 gathered freed
    < gather 12; norm gathered in use; norm gathered freed; embedding gathered in use
"""
TIED_BACKWARD = """
    > gather 12; norm gathered gathering; < gather 12; norm gathered in use
    > gather 1752; blocks.0 gathered gathering; norm gathered freed; > scatter 12; < scatter 12
    < gather 1752; blocks.0 gathered in use; blocks.0 gathered freed; > scatter 1752; < scatter 1752
    embedding gathered in use; > scatter 396
"""


def test_a_tied_embedding_stays_from_its_first_use_to_the_end_of_the_step():
    """The head uses it last. It is freed before the last rows arrive, and after an evaluation."""
    config, end = replace(UNTIED, tied=True), "embedding gathered freed"
    for _, step, evaluation in launch(told, 3, device="cpu", owner=Zero3, config=config):
        assert moved(step) == [*lines(TIED), *lines(TIED_BACKWARD), end, "< scatter 396"]
        assert evaluation == [*lines(TIED), end]


FROZEN = """
    > gather 396; head gathered gathering; < gather 396; head gathered in use
    > gather 12; norm gathered gathering; head gathered freed; > scatter 396; < scatter 396
    < gather 12; norm gathered in use
    > gather 600; blocks.0 gathered gathering; > gather 1152; blocks.0 gathered gathering
    norm gathered freed; < gather 600; blocks.0 gathered in use
    < gather 1152; blocks.0 gathered in use
    > gather 396; embedding gathered gathering; > scatter 1152
    blocks.0 gathered freed; < scatter 1152
    < gather 396; embedding gathered in use; embedding gathered freed; > scatter 396
    < scatter 396
"""


def test_a_unit_with_frozen_parameters_stays_until_the_next_unit_s_backward():
    """No gradient ends its backward. It has two rows: 1152 numbers are trained, 600 are not."""
    some = frozen("attention.", "norm.weight")
    for _, step, _ in launch(told, 3, device="cpu", owner=Zero3, transform=some):
        assert moved(step)[-len(lines(FROZEN)) :] == lines(FROZEN)


def test_parameters_have_no_memory_of_their_own_and_stay_tied():
    config = GPTConfig(vocab=33, context=8, width=12, layers=1, heads=2, bias=True)
    model = GPT(config, dtype=torch.float64, device="meta")
    model.blocks["0"].mlp.up.weight.requires_grad_(False)
    model.register_buffer("counts", torch.empty(3, device="meta"))
    names = {name: p.requires_grad for name, p in model.named_parameters()}
    Zero3.allocate(None, model, "cpu")
    assert {name: p.requires_grad for name, p in model.named_parameters()} == names
    for p in model.parameters():
        assert (p.numel(), p.dtype, p.device.type) == (0, torch.float64, "cpu")
    assert model.head.weight is model.embedding.weight
    assert (model.counts.shape, model.counts.device.type) == ((3,), "cpu")


@pytest.mark.parametrize(
    ("patterns", "m"), [(("attention.", "embedding"), 1), (("attention.",), 2)]
)
def test_a_kept_unit_with_frozen_parameters_is_gathered_once_in_each_micro_batch(patterns, m):
    """The backward before it ended with this unit, or passed it: neither may free it now."""
    for _, step, _ in launch(told, 3, device="cpu", owner=KEPT, transform=frozen(*patterns),
                             micro_batches=m):  # fmt: skip
        rows = [line for line in step if line.startswith("> gather")]
        assert sorted(rows) == sorted(m * [f"> gather {n}" for n in (396, 576, 1176, 12, 396)])


def test_the_advice_to_use_stage_1_names_stage_3():
    owner = object.__new__(Zero3)
    owner.transports = {(): SimpleNamespace(rank=0, size=2)}
    with pytest.warns(UserWarning, match="ZeRO stage 3 sends the gradients of each micro-batch"):
        owner.warn()
