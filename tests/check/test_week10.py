"""Week 10, beyond the loop over all exercises: the references, and other right answers."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check import week10 as exercises
from helpers.models.bamba import bamba
from helpers.models.caches.preallocated import Preallocated
from helpers.models.convolution import Convolution
from helpers.models.gpt import kept_by
from helpers.models.scan.selective import selective_step
from helpers.models.settings import Mamba2Settings
from notebooks.solutions import week10


def close(found, right):
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def test_two_steps_make_one():
    for _, (earlier, later) in exercises.steps():
        a, b = exercises.one_step(earlier, later)
        for h in (0.0, 1.0, -2.5):
            close(a * h + b, later[0] * (earlier[0] * h + earlier[1]) + later[1])


@pytest.mark.parametrize(("words", "t", "start"), exercises.PLACES)
def test_one_token_is_the_package_s_step(words, t, start):
    """The convolution of Mamba's block, and its step, on the sequence alone."""
    _, x, _, h, weight, delta, A, B, C = exercises.given(t, start)
    made = Convolution(x.shape[1], len(weight), dtype=x.dtype)
    made.load_state_dict({"weight": weight.mT, "bias": torch.zeros_like(x[0])})
    u = made(x[None, start : t + 1])[0][:, -1].detach()
    h = h[None] * (t > start)
    y, h = selective_step(u, delta[None], A, B[None], C[None], torch.zeros_like(x[0]), h)
    close(exercises.one_token(*exercises.given(t, start)), (y[0], h[0]))


@pytest.mark.usefixtures("shared_ranks")
def test_the_states_are_those_of_one_scan():
    for case in exercises.scan_over_ranks.asked():
        parts = exercises.parts_of(**case.arguments[1])
        a, b = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        h, states = torch.zeros_like(b[0]), []
        for decay, step in zip(a, b, strict=True):
            h = decay * h + step
            states.append(h)
        found = exercises.scan_over_ranks.expected(case)["the result"]
        close(torch.cat(found), torch.stack(states))


def test_kept_bytes_are_those_of_a_real_cache():
    sizes = Mamba2Settings(state=10, head=4, groups=2, convolution=3)
    config = bamba(5, [1, 4], width=24, heads=4, kv_heads=2, hidden=8, vocab=5, context=16,
                   rotary_share=1.0, mamba2=sizes)  # fmt: skip
    cache = Preallocated(kept_by(config.build(device="meta")), 3, 7, torch.float16)
    assert sum(exercises.kept_bytes(5, 2, 2, 6, 48, 10, 2, 3, 3, 7, 2)) == cache.bytes


def test_bamba_9b_is_among_the_cases():
    config = bamba()
    sizes = (32, 3, config.key_heads, config.head_width, config.mamba2.channels(config.width))
    sizes += (config.mamba2.state, config.mamba2.groups, config.mamba2.convolution)
    assert sum(case[:8] == sizes for _, case in exercises.hybrid_bytes.cases) == 2


def in_place(t, x, start, h, weight, delta, A, B, C):
    h *= t != start
    h.copy_(week10.ssm_step(t, x, start, h, weight, delta, A, B, C)[1])
    return (h * C).sum(-1), h


def pairs_to_all(worker, a, b):
    """Every rank sends its pair to all later ranks, which combine them; receives begin early."""
    pairs = b.new_empty(worker.rank, 2, 2)
    works = [dist.irecv(pair, rank) for rank, pair in enumerate(pairs)]
    h, decay = exercises.scan(a, b), a.cumprod(0)
    pair, before = torch.stack([b.new_ones(2), b.new_zeros(2)]), b.new_zeros(2)
    if len(b):
        pair = torch.stack([decay[-1], h[-1]])
    for work, came in zip(works, pairs, strict=True):
        work.wait()
        before = came[0] * before + came[1]
    for later in range(worker.rank + 1, worker.world_size):
        dist.send(pair, later)
    return h + decay * before


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("combine", lambda one, two: [two[0] * one[0], torch.addcmul(two[1], two[0], one[1])]),
        ("ssm_step", in_place),
        ("scan_over_ranks", pairs_to_all),
        ("hybrid_bytes", lambda *sizes: [float(b) for b in week10.hybrid_bytes(*sizes)]),
    ],
)
def test_other_right_answers_pass(name, answer):
    verdict = getattr(check, name)(answer)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks", "no_hints")
@pytest.mark.parametrize("name", ["combine", "ssm_step", "scan_over_ranks"])
def test_digits_of_float32_are_too_few(name):
    def rounded(*arguments):
        answer = getattr(week10, name)(*arguments)
        if isinstance(answer, tuple):
            return tuple(part.float().double() for part in answer)
        return answer.float().double()

    assert getattr(check, name)(rounded).status == "wrong"


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("to", "hint"),
    [(lambda rank: rank + 1, "What comes after the last"), (lambda rank: rank, "has already")],
)
def test_a_message_that_cannot_be_gets_a_hint(to, hint):
    def solve(worker, a, b):
        dist.send(b.sum(0), to(worker.rank))

    verdict = check.scan_over_ranks(solve)
    assert verdict.status == "wrong"
    assert hint in verdict.hint
