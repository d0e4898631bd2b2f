"""The virtual clock moves only when told to; real time goes on by itself."""

import time

from helpers.inference.engine.clock import RealTime, StepCost, Virtual
from helpers.inference.engine.plan import Work

WORK = Work(prefilled=10, decoded=3, padding=2, read=100)


def test_the_cost_of_a_step():
    assert StepCost()(WORK) == 1.0
    assert StepCost(step=2.0, token=0.5, read=0.01)(WORK) == 2 + 7.5 + 1


def test_virtual_time():
    clock = Virtual(StepCost(step=2.0))
    clock.start()
    assert clock.now == 0
    clock.spend(WORK)
    clock.wait(1.5)  # it is over
    assert clock.now == 2
    clock.wait(3.5)
    assert clock.now == 3.5
    clock.start()
    assert clock.now == 0


def test_any_function_is_a_cost():
    clock = Virtual(lambda work: work.read / 10)
    clock.spend(WORK)
    clock.spend(WORK)
    assert clock.now == 20
    plain = Virtual()
    plain.spend(WORK)
    assert plain.now == 1


def test_real_time_waits_and_begins_again(monkeypatch):
    slept, times = [], iter([10.0, 12.0, 12.5, 13.0, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = RealTime()
    assert clock.now == 2
    clock.wait(4.0)  # at 2.5
    clock.wait(1.0)  # it is over
    clock.start()
    assert clock.now == 1
    clock.spend(WORK)
    assert slept == [1.5, 0.0]
