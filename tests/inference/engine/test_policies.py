"""The policies plan steps, without a model. `test_engine` follows their plans to the end."""

from dataclasses import replace

import pytest

from helpers.inference.engine.plan import Plan, Progress, Queues
from helpers.inference.engine.policies import Chunked, Continuous, Static

SIZE = 4


def fresh(number, prompt=5, new=4):
    return Progress(number=number, prompt=prompt, known=prompt, cached=0, limit=prompt + new - 1)


def decoding(number, known=6, blocks=None, limit=20):
    blocks = -(-(known - 1) // SIZE) if blocks is None else blocks
    return Progress(
        number=number, prompt=2, known=known, cached=known - 1, limit=limit, blocks=blocks
    )


def queues(waiting=(), running=(), free=100, **others):
    blocks = free + sum(progress.blocks for progress in running)
    return Queues(
        waiting=tuple(waiting),
        running=tuple(running),
        free=free,
        **{"blocks": blocks, "block_size": SIZE, **others},
    )


class TestStatic:
    def test_nobody_joins_a_batch(self):
        plan = Static(5).plan(queues([fresh(9)], [decoding(0), decoding(1)], ended=2, reserved=12))
        assert plan == Plan(tokens={0: 1, 1: 1}, padding=2, reserved=12)

    def test_each_row_reserves_as_much_as_the_longest(self):
        short, long = fresh(0, prompt=2, new=3), fresh(1, prompt=5, new=8)  # 1 and 3 blocks
        plan = Static(2).plan(queues([short, long], free=6))
        assert (plan.tokens, plan.reserved) == ({0: 2, 1: 5}, 6)
        plan = Static(2).plan(queues([short, long], free=5))
        assert (plan.tokens, plan.reserved) == ({0: 2}, 1)


class TestContinuous:
    def test_a_prompt_is_prefilled_whole_while_others_decode(self):
        plan = Continuous(4).plan(queues([fresh(3, prompt=50)], [decoding(0), decoding(1)]))
        assert plan == Plan(tokens={0: 1, 1: 1, 3: 50})

    def test_a_prompt_starts_if_it_leaves_a_block_for_each_that_runs(self):
        running = [decoding(0, known=6), decoding(1, known=6)]  # their blocks have room
        assert Continuous(4).plan(queues([fresh(3)], running, free=4)).tokens == {0: 1, 1: 1, 3: 5}
        assert Continuous(4).plan(queues([fresh(3)], running, free=3)).tokens == {0: 1, 1: 1}
        full = [decoding(0, known=5), decoding(1, known=5)]  # each takes a block in this step
        assert Continuous(4).plan(queues([fresh(3)], full, free=5)).tokens == {0: 1, 1: 1}
        assert Continuous(4).plan(queues([fresh(3)], full, free=6)).tokens == {0: 1, 1: 1, 3: 5}

    def test_a_short_prompt_does_not_overtake_a_long_one(self):
        waiting = [fresh(3, prompt=40), fresh(4, prompt=2)]
        assert Continuous(4).plan(queues(waiting, [decoding(0)], free=5)).tokens == {0: 1}

    def test_the_latest_gives_its_blocks_back(self):
        running = [decoding(n, known=5) for n in range(3)]  # each needs one more block
        plan = Continuous(4).plan(queues([fresh(9)], running, free=1))
        assert plan == Plan(tokens={0: 1, 1: 1}, preempted=(2,))
        plan = Continuous(4).plan(queues(running=running, free=0))
        assert plan == Plan(tokens={0: 1}, preempted=(2, 1))  # one block each: 2's is for 0

    def test_all_blocks_of_a_preempted_request_are_free(self):
        running = [decoding(0, known=5), decoding(1, known=5), decoding(2, known=10)]
        plan = Continuous(4).plan(queues(running=running, free=0))  # request 2 has 3 blocks
        assert plan == Plan(tokens={0: 1, 1: 1}, preempted=(2,))

    def test_one_may_give_back_its_own_blocks(self):
        running = [decoding(0, known=6), decoding(1, known=5)]  # only the second needs a block
        assert Continuous(4).plan(queues(running=running, free=0)) == Plan(
            tokens={0: 1}, preempted=(1,)
        )


class TestChunked:
    def test_decodes_first_then_a_piece_of_the_prompt(self):
        plan = Chunked(4, budget=8).plan(queues([fresh(3, prompt=50)], [decoding(0), decoding(1)]))
        assert plan == Plan(tokens={0: 1, 1: 1, 3: 6})

    def test_a_started_prompt_continues_before_a_new_one_starts(self):
        started = Progress(number=1, prompt=9, known=9, cached=4, limit=12, blocks=1)
        plan = Chunked(4, budget=8).plan(queues([fresh(3)], [decoding(0), started]))
        assert plan.tokens == {0: 1, 1: 5, 3: 2}
        long = replace(started, prompt=99, known=99)
        assert Chunked(4, budget=8).plan(queues([fresh(3)], [decoding(0), long])).tokens == {
            0: 1,
            1: 7,
        }

    def test_a_later_decode_keeps_its_token_of_the_budget(self):
        started = Progress(number=0, prompt=99, known=99, cached=4, limit=120, blocks=1)
        plan = Chunked(4, budget=4).plan(queues([], [started, decoding(1), decoding(2)]))
        assert plan.tokens == {0: 2, 1: 1, 2: 1}

    def test_a_prompt_starts_only_if_all_of_it_fits(self):
        plan = Chunked(4, budget=4).plan(queues([fresh(3, prompt=9)], [decoding(0)], free=3))
        assert plan.tokens == {0: 1}
        plan = Chunked(4, budget=4).plan(queues([fresh(3, prompt=9)], [decoding(0)], free=4))
        assert plan.tokens == {0: 1, 3: 3}

    def test_a_budget_below_the_most_is_refused(self):
        with pytest.raises(ValueError, match="a budget of 3 tokens, but 4 requests may decode"):
            Chunked(4, budget=3)


@pytest.mark.parametrize("policy", [Static, Continuous, lambda n: Chunked(n, 8)])
@pytest.mark.parametrize("wrong", [0, -1, 2.5])
def test_sizes_are_positive_whole_numbers(policy, wrong):
    with pytest.raises(ValueError, match=f"(size|most) must be a .* number, not {wrong}"):
        policy(wrong)
