"""Interrupts at moments of our choosing."""

import signal
import threading
from contextlib import contextmanager

import pytest

from helpers.runtime.local.interrupt import Interrupts


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_held_back_and_delivered_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts():  # noqa: PT012
        interrupt()
        interrupt()
        done.append(True)
    assert done


@contextmanager
def cleanup(done):
    """At the end, clear up in spite of another interrupt."""
    try:
        yield
    finally:
        interrupt()
        done.append("cleared up")


@pytest.mark.parametrize("also", [False, True], ids=["before the cleanup", "in the cleanup too"])
def test_let_through_where_allowed_but_once(also):
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        blocks = [cleanup(done), interrupts.allowed()]
        outer, inner = reversed(blocks) if also else blocks
        with outer, inner:
            interrupt()
            done.append("not reached")
    assert done == ["cleared up"]


def test_one_from_before_ends_the_wait():
    def call():
        with Interrupts() as interrupts:
            interrupt()
            with interrupts.allowed():
                raise AssertionError("it waits")

    with pytest.raises(KeyboardInterrupt):
        call()


def test_an_error_on_its_way_out_goes_first():
    seen = []
    try:
        with Interrupts():
            interrupt()
            raise ValueError("mine")
    except (ValueError, KeyboardInterrupt) as error:
        seen.append(type(error))
    assert seen == [ValueError]


def test_the_handler_is_as_before():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_a_thread_it_does_nothing():
    before, done = signal.getsignal(signal.SIGINT), []

    def call():
        with Interrupts() as interrupts, interrupts.allowed():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert done == [before]
