"""Plans are checked before they are carried out, and their work is counted."""

import pytest

from helpers.inference.engine.plan import Plan, Progress, Queues, Work, check_plan, work_of


def progress(number, prompt=5, generated=0, cached=0, blocks=0, limit=20):
    return Progress(
        number=number,
        prompt=prompt,
        known=prompt + generated,
        cached=cached,
        limit=limit,
        blocks=blocks,
    )


DECODING = progress(0, prompt=5, generated=3, cached=7, blocks=2)
STARTED = progress(1, prompt=9, cached=4, blocks=1)
NEW = progress(2, prompt=5)


def queues(free=10, **others):
    return Queues(
        **{"waiting": (NEW,), "running": (DECODING, STARTED), "blocks": 13, "block_size": 4}
        | others,
        free=free,
    )


@pytest.mark.parametrize(
    ("generated", "cached", "missing", "decodes"),
    [
        (0, 0, 5, False),
        (0, 4, 1, False),  # the last token of a prompt
        (1, 5, 1, True),
        (3, 7, 1, True),
        (3, 0, 8, False),  # after a preemption
        (3, 6, 2, False),
    ],
)
def test_progress(generated, cached, missing, decodes):
    found = progress(0, generated=generated, cached=cached)
    assert (found.missing, found.decodes) == (missing, decodes)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_tokens(tokens, blocks):
    assert queues().blocks_for(tokens) == blocks
    assert queues(block_size=0).blocks_for(tokens) == 0


@pytest.mark.parametrize(
    ("cached", "tokens", "needs"), [(0, 1, 1), (3, 1, 0), (4, 1, 1), (3, 6, 2)]
)
def test_a_step_needs_the_blocks_that_its_tokens_begin(cached, tokens, needs):
    assert queues().needs(progress(0, prompt=30, cached=cached), tokens) == needs


def test_work_is_counted_by_kind():
    work = work_of([(DECODING, 1), (STARTED, 3), (NEW, 5)], padding=2)
    assert work == Work(prefilled=8, decoded=1, padding=2, read=8 + 7 + 5)
    assert work.tokens == 11
    assert work_of([]) == Work()


@pytest.mark.parametrize(
    ("plan", "free"),
    [
        (Plan(), 0),
        (Plan(tokens={0: 1}), 0),  # its block has room
        (Plan(tokens={0: 1, 1: 4, 2: 5}), 3),
        (Plan(tokens={0: 1, 2: 5}, preempted=(1,)), 1),
        (Plan(tokens={1: 5}), 2),
    ],
)
def test_a_plan_that_can_be_carried_out(plan, free):
    check_plan(plan, queues(free))


@pytest.mark.parametrize(
    ("plan", "free", "message"),
    [
        (Plan(tokens={7: 1}), 9, r"requests \[7\], which are not in a queue"),
        (Plan(tokens={0: 1}, preempted=(7,)), 9, r"\[7\], which are not in a queue"),
        (Plan(tokens={0: 1}, preempted=(2,)), 9, r"preempts the requests \[2\], which do not run"),
        (Plan(tokens={0: 1}, preempted=(0,)), 9, r"preempts the requests \[0\] and computes them"),
        (Plan(tokens={0: 1}, preempted=(1, 1)), 9, "preempts a request twice"),
        (Plan(preempted=(1,)), 9, "computes nothing"),
        (Plan(tokens={0: 2}), 9, "2 tokens of request 0, which lacks 1"),
        (Plan(tokens={0: 0}), 9, "0 tokens of request 0"),
        (Plan(tokens={2: 6}), 9, "6 tokens of request 2, which lacks 5"),
        (
            Plan(tokens={1: 4, 2: 5}),
            2,
            "needs 3 blocks, but only 2 are free and preemption frees 0",
        ),
        (Plan(tokens={0: 1, 2: 5}, preempted=(1,)), 0, "needs 2 blocks.*only 0.*frees 1"),
    ],
)
def test_a_plan_that_cannot_be_carried_out(plan, free, message):
    with pytest.raises(ValueError, match=message):
        check_plan(plan, queues(free))
