"""A function that does not end is stopped; one that ends in time is not."""

import signal
import sys
import threading
import time

import pytest

from helpers.check.limit import TooLong, limit


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
    began = time.monotonic()
    with pytest.raises(TooLong), limit(0.2):
        fn()
    assert time.monotonic() - began < 10


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


def test_an_error_is_passed_on():
    with pytest.raises(ZeroDivisionError), limit(5):
        1 / 0  # noqa: B018
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


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


@pytest.mark.parametrize("fn", [deaf, deaf_and_talking])
def test_a_function_that_catches_everything_stops_too(fn):
    tracing = sys.gettrace()
    with pytest.raises(TooLong), limit(0.2):
        fn()
    assert sys.gettrace() is tracing
    assert busy_for_a_moment() == 3  # nothing is stopped any more


def busy_for_a_moment():
    count = 0
    for _ in range(3):
        count += 1
    return count
