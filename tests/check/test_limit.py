"""A function that does not end is stopped; one that ends in time is not."""

import contextlib
import gc
import signal
import sys
import threading
import time
import weakref

import pytest

from helpers.check.limit import TooLong, limit

pytestmark = pytest.mark.timeout(60)  # what the limit does not stop would go on


def busy():
    while True:
        pass


def stubborn():
    while True:
        try:
            busy()
        except Exception:
            pass


@pytest.mark.parametrize("fn", [busy, stubborn, lambda: time.sleep(20)])
def test_it_stops(fn):
    began, before = time.monotonic(), signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TooLong), limit(0.2):
        fn()
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_afterwards_all_is_as_before():
    def own(number, frame):
        raise AssertionError("the timer has fired")

    before = signal.signal(signal.SIGVTALRM, own)
    try:
        with limit(0.2):
            pass
        assert signal.getsignal(signal.SIGVTALRM) is own
        time.sleep(0.4)  # the timer is gone: nothing stops this
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_what_the_callers_hold_is_freed():
    class Large:
        pass

    def calls():
        large = Large()
        with limit(5):
            pass
        return weakref.ref(large)

    gc.disable()
    try:
        assert calls()() is None
    finally:
        gc.enable()


def test_a_signal_after_the_block_stops_nothing(monkeypatch):
    class Timer(threading.Timer):
        def cancel(self):
            signal.raise_signal(signal.SIGVTALRM)
            cancelled.append(self)
            super().cancel()

    monkeypatch.setattr(threading, "Timer", Timer)
    before = signal.getsignal(signal.SIGVTALRM)
    cancelled = []
    with limit(5):
        pass
    assert len(cancelled) == 1
    assert signal.getsignal(signal.SIGVTALRM) is before


@pytest.mark.parametrize("late", [False, True])
def test_a_debugger_goes_on(late):
    def own(frame, event, argument):
        return None

    tracing = sys.gettrace()
    sys.settrace(own)
    try:
        if late:
            with pytest.raises(TooLong), limit(0.1):
                busy()
        else:
            with limit(5):
                pass
        assert sys.gettrace() is own
    finally:
        sys.settrace(tracing)


def test_in_another_thread_there_is_no_limit():
    found = []

    def work():
        with limit(0.1):
            time.sleep(0.3)
        found.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["done"]


def deaf():
    while True:
        try:
            busy()
        except:  # noqa: E722
            pass


def deaf_and_talking():
    while True:
        try:
            busy()
        except:  # noqa: E722
            print("went on")
            continue


def deaf_by_another():
    while True:
        with contextlib.suppress(BaseException):
            busy()


class DeafAtTheEnd:
    def __del__(self):
        busy()  # Python ignores what is raised here


def deaf_at_the_end_of_a_value():
    for _ in range(10**9):
        DeafAtTheEnd()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "fn", [deaf, deaf_and_talking, deaf_by_another, deaf_at_the_end_of_a_value]
)
def test_a_function_that_catches_everything_stops_too(fn):
    def block():
        with limit(0.2):
            yield fn()

    tracing = sys.gettrace()
    with pytest.raises(TooLong):  # in a generator, as a cell runs: outside of one, Python 3.11
        next(block())  # goes on handling an exception that ended a `with` by way of a tracer
    assert sys.exc_info() == (None, None, None)
    assert sys.gettrace() is tracing
    assert sys._getframe().f_trace is None  # the limit is that of the block
    assert busy_for_a_moment() == 3  # nothing is stopped any more


def busy_for_a_moment():
    count = 0
    for _ in range(3):
        count += 1
    return count
