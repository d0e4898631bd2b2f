"""Our orders are those of torch.distributed.pipelining, where both have the schedule.

PyTorch's orders are private: this adapter is their one user, and it skips, saying why, when a
release moves them. Its GPipe and 1F1B are compared as they run, on stages that only write down what
they are told. Their tables of orders are for pictures; in PyTorch 2.13 that of 1F1B starts the last
rank with micro-batch 1.
"""

from types import SimpleNamespace

import pytest

from helpers.plans.schedules import (
    Action,
    gpipe,
    interleaved,
    one_f_one_b,
    timeline,
    zero_bubble_v,
)

KIND = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


class Recorder:
    """A stage of theirs that computes nothing and sends nothing; it writes down its calls."""

    def __init__(self, stage):
        self.stage_index, self.order, self.has_backward = stage, [], True

    def forward_one_chunk(self, micro, *args, **options):
        self.order.append(Action("F", self.stage_index, micro))

    def backward_one_chunk(self, micro, **options):
        self.order.append(Action("B", self.stage_index, micro))

    def no_messages(self, micro):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages

    def perform_reduce_grad(self, scale):
        pass


def nothing(*args, **options):
    return None


def run_theirs(name, p, m):
    """What their schedule of one stage a rank runs: a tuple of Actions for each rank."""
    orders = []
    for rank in range(p):
        stage = Recorder(rank)
        facts = SimpleNamespace(
            _stage=stage,
            _n_microbatches=m,
            _num_stages=p,
            _has_backward=True,
            scale_grads=True,
            _check_inputs=lambda *args: ([()] * m, [{}] * m),
            _initialize_stage=nothing,
            _maybe_compute_loss=nothing,
            _maybe_get_loss=nothing,
            _update_losses=nothing,
        )
        plan(name)._step_microbatches(facts)
        orders.append(tuple(stage.order))
    return tuple(orders)


def plan_theirs(name, p, m, v):
    """The order that their schedule of v stages a rank makes: a tuple of Actions for each rank."""
    facts = SimpleNamespace(
        pp_group_size=p,
        _n_microbatches=m,
        num_stages=p * v,
        n_local_stages=v,
        microbatches_per_round=m // max(1, m // p),
    )
    orders = [plan(name)._calculate_single_rank_operations(facts, rank) for rank in range(p)]
    return tuple(tuple(ours(each) for each in order if each) for order in orders)


def plan(name):
    from torch.distributed.pipelining import schedules

    return getattr(schedules, name)


def ours(action) -> Action:
    return Action(KIND[action.computation_type.name], action.stage_index, action.microbatch_index)


def theirs(way, *args):
    try:
        return way(*args)
    except (ImportError, AttributeError, TypeError, KeyError) as moved:
        pytest.skip(f"PyTorch's private schedules changed: {type(moved).__name__}: {moved}")


SIZES = [(1, 1), (2, 1), (2, 5), (3, 2), (4, 4), (4, 8), (5, 13)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p, m):
    assert gpipe(p, m).orders == theirs(run_theirs, "ScheduleGPipe", p, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b(p, m):
    assert one_f_one_b(p, m).orders == theirs(run_theirs, "Schedule1F1B", p, m)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 4, 3), (3, 9, 2), (4, 4, 4), (4, 8, 2)])
def test_interleaved(p, m, v):
    wanted = theirs(plan_theirs, "ScheduleInterleaved1F1B", p, m, v)
    assert interleaved(p, m, v).orders == wanted


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 1), (2, 3), (3, 4), (4, 7), (4, 12), (5, 2)])
def test_zb_v(p, m):
    schedule = zero_bubble_v(p, m)
    assert schedule.orders == theirs(plan_theirs, "ScheduleZBVZeroBubble", p, m, 2)
    assert len(timeline(schedule)) == 6 * p * m
