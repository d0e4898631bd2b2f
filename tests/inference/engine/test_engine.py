"""Whatever the policy, each request's tokens are the same as alone, and each gets its answer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.inference.decoder.fused import Fused
from helpers.inference.engine.clock import RealTime, StepCost, Virtual
from helpers.inference.engine.engine import Engine
from helpers.inference.engine.plan import Plan
from helpers.inference.engine.policies import Chunked, Continuous, Static
from helpers.inference.engine.request import Request
from helpers.inference.generate import generate
from helpers.inference.sampling import NotANumber, Sampling
from helpers.models.settings import Mamba2Settings

POLICIES = [Static(3), Static(2, padding=False), Continuous(3), Chunked(3, 5), Chunked(3, 3)]
COST = StepCost(step=1.0, token=0.125)
WARM = Sampling(temperature=1.2, top_p=0.9)


def alone(model, request):
    """(tokens, reason) of a request that `generate` has for itself."""
    [found] = generate(
        model,
        [request.prompt],
        request.new_tokens,
        sampling=request.sampling,
        stop=tuple(request.stop),
        seeds=[request.seed],
    )
    return tuple(found.tokens), found.reason


def serve(model, policy, requests, blocks=12, **options):
    engine = Engine(model, policy, blocks, 4)
    served = engine.run(requests, Virtual(COST), **options)
    assert engine.runner.free == blocks  # no block is lost
    return served


def check_times(served):
    """Each request's spans fill its time, and each token comes at the end of a step."""
    ends = {step.end for step in served.steps}
    for before, after in zip(served.steps, served.steps[1:], strict=False):
        assert before.start < before.end <= after.start
    for one in served.requests:
        times = [one.arrival, *(span.end for span in one.spans)]
        assert [span.start for span in one.spans] == times[:-1]
        assert times[-1] == one.ended
        assert set(one.times) <= ends
        assert len(one.times) == len(one.tokens)
        assert sum(span.kind == "preempted" for span in one.spans) == one.preempted


class Watching:
    """Plan as another policy does, and keep what it sees."""

    def __init__(self, policy):
        self.policy, self.seen = policy, []

    def plan(self, queues):
        self.seen.append(queues)
        return self.policy.plan(queues)


class Checked(Watching):
    """Check what each policy promises: nobody overtakes, the oldest goes on, limits hold."""

    def plan(self, queues):
        plan, policy = super().plan(queues), self.policy
        waiting = [progress.number for progress in queues.waiting]
        running = [progress.number for progress in queues.running]
        started = [number for number in waiting if number in plan.tokens]
        assert started == waiting[: len(started)]
        assert set(running[:1]) <= set(plan.tokens)
        assert list(plan.preempted) == running[: -len(plan.preempted) - 1 : -1]  # the latest first
        most = policy.size if isinstance(policy, Static) else policy.most
        assert len(running) - len(plan.preempted) + len(started) <= most
        if isinstance(policy, Chunked):
            assert sum(plan.tokens.values()) <= policy.budget
        if isinstance(policy, Static):
            assert not plan.preempted
            assert plan.reserved <= queues.blocks
        return plan


@st.composite
def workloads(draw):
    prompts = st.lists(st.integers(0, 18), min_size=1, max_size=14)
    requests = [
        Request(
            number,
            draw(prompts),
            draw(st.integers(1, 9)),
            arrival=draw(st.integers(0, 12)) / 2,
            sampling=draw(st.sampled_from([Sampling(), WARM])),
            seed=draw(st.integers(0, 3)),
            stop=draw(st.sampled_from([(), (3, 5)])),
        )
        for number in draw(st.permutations(range(draw(st.integers(1, 5)))))
    ]
    longest = max(-(-(len(r.prompt) + r.new_tokens - 1) // 4) for r in requests)
    return requests, longest + draw(st.integers(0, 4))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(max_examples=12)
@given(workload=workloads())
def test_tokens_are_the_same_as_alone(llama, policy, workload):
    requests, blocks = workload
    served = serve(llama, Checked(policy), requests, blocks)
    found = {one.number: (one.tokens, one.reason) for one in served.requests}
    assert found == {request.number: alone(llama, request) for request in requests}
    check_times(served)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_shape_of_model(model, policy):
    requests = [Request(n, range(1, 2 + 3 * n), 5, arrival=n / 2) for n in range(5)]
    served = serve(model, policy, requests)
    assert [(one.tokens, one.reason) for one in served.requests] == [
        alone(model, request) for request in requests
    ]


STATES = {
    "hybrid": {"mixer": ("mamba2", "attention"), "mamba2": Mamba2Settings(head=8, state=5)},
    "mamba": {"mixer": "mamba", "mlp": "none", "positions": "none"},
}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("shape", STATES.values(), ids=STATES)
def test_models_with_states_of_fixed_size(make_model, shape, policy):
    model = make_model(**shape)
    requests = [Request(n, range(1, 2 + 3 * n), 5, arrival=n / 2) for n in range(5)]
    served = serve(model, policy, requests, blocks=5)
    assert [(one.tokens, one.reason) for one in served.requests] == [
        alone(model, request) for request in requests
    ]


@pytest.mark.parametrize("policy", [Continuous(3), Chunked(3, 6)], ids=str)
def test_few_blocks_preempt_the_latest(llama, policy):
    requests = [Request(n, [n + 1] * 4, 9) for n in range(3)]
    served = serve(llama, policy, requests, blocks=6)
    assert [one.tokens for one in served.requests] == [alone(llama, r)[0] for r in requests]
    times = [one.preempted for one in served.requests]
    assert times[0] == 0
    assert times[2] > 0
    assert sum(step.preempted for step in served.steps) == sum(times)
    assert [one.ended for one in served.requests] == sorted(one.ended for one in served.requests)
    check_times(served)
    assert serve(llama, Static(3), requests, blocks=6).frame()["preempted"].sum() == 0


class LatestFirst:
    """Run one request at a time, the latest that waits first; prefill one token at a time."""

    def plan(self, queues):
        if len(queues.waiting) == 3:
            return Plan(tokens={queues.waiting[-1].number: 1})
        waiting = [progress.number for progress in reversed(queues.waiting)]
        return Plan(tokens=dict.fromkeys([p.number for p in queues.running] + waiting, 1))


class TestQueues:
    def test_are_in_order_of_arrival_whoever_starts_first(self, llama):
        policy = Watching(LatestFirst())
        requests = [Request(n, [n + 1, 2], 3) for n in (2, 0, 1)]
        served = serve(llama, policy, requests)
        assert [one.tokens for one in served.requests] == [
            alone(llama, request)[0] for request in sorted(requests, key=lambda r: r.number)
        ]
        assert [p.number for p in policy.seen[1].running] == [2]
        assert [p.number for p in policy.seen[2].running] == [0, 1, 2]

    def test_a_preempted_request_waits_before_later_ones(self, llama):
        policy = Watching(Continuous(3))
        requests = [Request(5 - n, [n + 1] * 4, 9, arrival=n / 8) for n in range(6)]
        served = serve(llama, policy, requests, blocks=6)
        assert any(one.preempted for one in served.requests)
        assert [one.number for one in served.requests] == list(range(6))
        for queues in policy.seen:
            for queue in (queues.waiting, queues.running):
                numbers = [progress.number for progress in queue]
                assert numbers == sorted(numbers, reverse=True)

    def test_nothing_of_a_batch_is_left_for_the_next(self, llama):
        policy = Watching(Static(2))
        requests = [Request(n, [n + 1, 2], 2 + n) for n in range(4)]
        served = serve(llama, policy, requests)
        assert [step.work.padding for step in served.steps] == [0, 0, 1, 0, 0, 0, 0, 1]
        for queues in policy.seen:
            assert queues.running or (queues.ended, queues.reserved) == (0, 0)
        assert {queues.reserved for queues in policy.seen if queues.running} == {2, 4}


class TestTimes:
    """Three requests; each step takes 1 second and 1/8 for each token."""

    REQUESTS = (
        Request(0, [1, 2, 3, 4], 2),
        Request(1, [5] * 8, 4, arrival=0.5),
        Request(2, [6, 7], 3, arrival=9.0),
    )

    def test_continuous(self, llama):
        served = serve(llama, Continuous(3), self.REQUESTS)
        assert [step.end for step in served.steps] == [
            1.5,  # 4 tokens of request 0
            3.625,  # 1 of 0, 8 of 1
            4.75,
            5.875,
            7.0,
            10.25,  # from 9.0
            11.375,
            12.5,
        ]
        assert [one.times for one in served.requests] == [
            (1.5, 3.625),
            (3.625, 4.75, 5.875, 7.0),
            (10.25, 11.375, 12.5),
        ]
        assert [one.first for one in served.requests] == [1.5, 3.125, 1.25]
        kinds = [(span.kind, span.start, span.end) for span in served.requests[1].spans]
        assert kinds == [("waiting", 0.5, 1.5), ("prefill", 1.5, 3.625), ("decode", 3.625, 7.0)]

    def test_chunked(self, llama):
        served = serve(llama, Chunked(3, 5), self.REQUESTS)
        assert [step.work.tokens for step in served.steps[:4]] == [4, 5, 4, 1]
        assert served.requests[0].times == (1.5, 3.125)
        assert served.requests[1].times[0] == 4.625
        assert served.requests[0].stutter < 2 < served.requests[1].first

    def test_static(self, llama):
        served = serve(llama, Static(3), self.REQUESTS)
        # Request 1 waits until request 0 has ended.
        assert served.requests[0].times == (1.5, 2.625)
        assert served.requests[1].times[0] == 2.625 + 2
        late = [Request(n, [1, 2], new, arrival=0) for n, new in enumerate([1, 5])]
        both = serve(llama, Static(2), [*late, Request(2, [4], 1, arrival=2.0)])
        assert [step.work.padding for step in both.steps] == [0, 1, 1, 1, 1, 0]
        assert [step.reserved for step in both.steps] == [4, 4, 4, 4, 4, 1]
        assert both.requests[2].times[0] == both.requests[1].ended + 1.125
        spared = serve(llama, Static(2, padding=False), late)
        assert [step.work.padding for step in spared.steps] == [0] * 5

    def test_the_record_of_steps(self, llama):
        served = serve(llama, Continuous(3), self.REQUESTS)
        assert [step.work.prefilled for step in served.steps] == [4, 8, 0, 0, 0, 2, 0, 0]
        assert [step.work.decoded for step in served.steps] == [0, 1, 1, 1, 1, 0, 1, 1]
        assert [step.work.read for step in served.steps] == [4, 13, 9, 10, 11, 2, 3, 4]
        assert [step.running for step in served.steps] == [1, 2, 1, 1, 1, 1, 1, 1]
        assert [step.used for step in served.steps] == [1, 4, 3, 3, 3, 1, 1, 1]
        assert [step.reserved for step in served.steps] == [step.used for step in served.steps]
        assert (served.blocks, served.tokens, served.seconds) == (12, 9, 12.5)

    def test_a_request_that_a_step_leaves_out_does_not_run_in_it(self, llama):
        class Turns:
            def plan(self, queues):
                own = sorted([*queues.running, *queues.waiting], key=lambda p: p.known)
                return Plan(tokens={own[0].number: own[0].missing})

        served = serve(llama, Turns(), [Request(n, [1, 2], 2) for n in range(2)])
        assert [step.running for step in served.steps] == [1] * 4
        assert [step.used for step in served.steps] == [1, 2, 2, 1]

    def test_waiting_requests_are_counted(self, llama):
        requests = [Request(n, [1, 2], 2) for n in range(3)]
        served = serve(llama, Continuous(1), requests)
        assert [step.waiting for step in served.steps] == [2, 2, 1, 1, 0, 0]


class TestEnds:
    def test_impossible_requests_end_with_the_reason_and_others_go_on(self, llama):
        requests = [
            Request(0, [], 3),
            Request(1, [1] * 25, 3),
            Request(2, [1, 99], 3),
            Request(3, [1] * 10, 14),
            Request(4, [1, 2, 3], 3),
            Request(5, [1, 2, 3], 0),
            Request(6, [1] * 12, 20),
        ]
        served = serve(llama, Continuous(3), requests, blocks=5)
        reasons = [one.reason for one in served.requests]
        assert reasons[0].startswith("error: the prompt is empty")
        assert reasons[1].startswith("error: the prompt has 25 tokens, but the context allows 24")
        assert reasons[2].startswith("error: token 99 at place 1")
        assert reasons[3].startswith("error: the request may need 6 blocks, but the cache has 5")
        assert reasons[4:6] == ["length", "length"]
        assert reasons[6].startswith("error: the request may need 6 blocks")
        assert served.requests[4].tokens == alone(llama, requests[4])[0]
        assert served.requests[5].tokens == ()

    def test_the_context_ends_a_request(self, llama):
        requests = [Request(0, [1] * 20, 20), Request(1, [1, 2], 3)]
        served = serve(llama, Continuous(3), requests)
        assert served.requests[0].reason == "context"
        assert (served.requests[0].tokens, "context") == alone(llama, requests[0])

    def test_nan_ends_one_request(self, make_model):
        model = make_model(tied=False)
        with torch.no_grad():
            model.embedding.weight[18] = float("nan")
        requests = [Request(0, [1, 2], 4), Request(1, [1, 18], 4), Request(2, [3], 4)]
        served = serve(model, Continuous(3), requests)
        assert served.requests[1].reason == f"error: {NotANumber.text}"
        assert [served.requests[n].tokens for n in (0, 2)] == [
            alone(model, requests[n])[0] for n in (0, 2)
        ]


class TestPrefixes:
    def test_a_shared_prompt_is_computed_once(self, llama):
        requests = [Request(n, [*range(9), n], 4, arrival=3.0 * n) for n in range(3)]
        for policy in (Continuous(3), Chunked(3, 6)):
            engine = Engine(llama, policy, 12, 4, share_prefixes=True)
            served = engine.run(requests, Virtual(COST))
            assert [one.tokens for one in served.requests] == [alone(llama, r)[0] for r in requests]
            assert sum(step.work.prefilled for step in served.steps) == 10 + 2 + 2
            assert engine.runner.free == 12

    @settings(max_examples=12)
    @given(workload=workloads())
    def test_tokens_are_the_same_as_alone(self, llama, workload):
        requests, blocks = workload
        start = [7, 7, 3, 1, 2, 2]
        requests = [
            Request(r.number, [*start, *r.prompt][:14], r.new_tokens, arrival=r.arrival)
            for r in requests
        ]
        served = Engine(llama, Continuous(3), blocks + 2, 4, share_prefixes=True).run(
            requests, Virtual(COST)
        )
        found = {one.number: one.tokens for one in served.requests}
        assert found == {request.number: alone(llama, request)[0] for request in requests}
        check_times(served)


class TestEngine:
    def test_fused_weights(self, llama):
        engine = Engine(llama, Continuous(3), 12, 4, fused=True)
        requests = [Request(n, range(1, 2 + 3 * n), 5, arrival=n / 2) for n in range(5)]
        served = engine.run(requests, Virtual(COST))
        assert [one.tokens for one in served.requests] == [alone(llama, r)[0] for r in requests]
        assert isinstance(engine.runner.forward, Fused)

    def test_the_defaults_are_the_plain_model_and_blocks_of_16(self, llama):
        engine = Engine(llama, Continuous(3), 12)
        assert engine.runner.forward is llama
        assert (engine.runner.block_size, engine.runner.share_prefixes) == (16, False)
        assert Engine(llama, Continuous(3), 12, share_prefixes=True).runner.share_prefixes

    def test_in_real_time(self, llama):
        requests = [Request(n, [n + 1, 2], 3, arrival=0.01 * n) for n in range(3)]
        for clock in (None, RealTime()):
            served = Engine(llama, Continuous(2), 12, 4).run(requests, clock)
            assert [one.tokens for one in served.requests] == [alone(llama, r)[0] for r in requests]
            assert all(one.first > 0 for one in served.requests)
            check_times(served)

    def test_an_engine_serves_again(self, llama):
        engine = Engine(llama, Continuous(3), 12, 4)
        requests = [Request(n, [n + 1, 2], 3) for n in range(3)]
        first, second = (engine.run(requests, Virtual()) for _ in range(2))
        assert first == second

    def test_nothing_to_serve(self, llama):
        served = serve(llama, Continuous(3), [])
        assert (list(served.requests), list(served.steps)) == ([], [])

    def test_two_requests_of_one_number(self, llama):
        with pytest.raises(ValueError, match="two requests have the same number"):
            serve(llama, Continuous(3), [Request(1, [1], 1), Request(1, [2], 1)])

    def test_a_policy_that_does_nothing(self, llama):
        class Idle:
            def plan(self, queues):
                return Plan()

            def __repr__(self):
                return "Idle"

        with pytest.raises(RuntimeError, match="Idle plans no work for 1 waiting and 0 running"):
            serve(llama, Idle(), [Request(1, [1], 1)])

    def test_a_policy_may_wait_for_the_next_arrival(self, llama):
        class Pairs(Static):
            def plan(self, queues):
                ready = queues.running or len(queues.waiting) == 2
                return super().plan(queues) if ready else Plan()

        served = serve(llama, Pairs(2), [Request(0, [1], 2), Request(1, [2], 2, arrival=5.0)])
        assert served.steps[0].start == 5
        assert served.requests[0].spans[0].end == 5

    def test_a_wrong_plan_is_refused_and_frees_all(self, llama):
        class Wrong:
            def plan(self, queues):
                return Plan(tokens={0: 1 if queues.running else 2, 9: 1})

        engine = Engine(llama, Wrong(), 12, 4)
        with pytest.raises(ValueError, match=r"the requests \[9\], which are not in a queue"):
            engine.run([Request(0, [1, 2], 3)], Virtual())
        assert engine.runner.free == 12

    def test_a_model_that_fails_frees_all(self, make_model):
        model, calls = make_model(), []
        engine = Engine(model, Continuous(2), 12, 4)
        model.norm.register_forward_hook(
            lambda *_: calls.append(0) or (1 / 0 if calls[3:] else None)
        )
        with pytest.raises(ZeroDivisionError):
            engine.run([Request(0, [1, 2], 9)], Virtual())
        assert engine.runner.free == 12


def test_time_never_goes_back():
    clock = Virtual()
    clock.wait(3.0)
    clock.wait(1.0)
    assert clock.now == 3.0
