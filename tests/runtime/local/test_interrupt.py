"""Interrupts at moments of our choosing."""

import signal
import threading
import time
import weakref
from contextlib import contextmanager, suppress

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


def test_held_back_while_an_error_of_the_cleanup_is_handled():
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts, interrupts.allowed():  # noqa: PT012
        try:
            interrupt()
        finally:
            try:
                raise OSError("gone already")
            except OSError:
                interrupt()
                done.append("cleared up")
    assert done == ["cleared up"]


def test_one_that_ended_another_call_holds_none_back():
    def call():
        with Interrupts() as interrupts, interrupts.allowed():
            interrupt()
            raise AssertionError("it goes on")

    with pytest.raises(KeyboardInterrupt):
        call()
    try:
        call()
    except KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            call()


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


def test_a_notebook_shows_one_line_of_an_interrupt():
    for held in (False, True):
        with pytest.raises(KeyboardInterrupt) as caught, Interrupts() as interrupts:  # noqa: PT012
            if held:
                interrupt()
            else:
                with interrupts.allowed():
                    interrupt()
        assert caught.value._render_traceback_() == ["KeyboardInterrupt: the ranks are stopped."]


def test_after_the_part_where_it_is_allowed_it_is_held_back_again():
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:  # noqa: PT012
        with suppress(OSError), interrupts.allowed():
            raise OSError("the call failed")
        interrupt()
        done.append("went on")
    assert done == ["went on"]


def test_a_handler_of_the_reader_s_own_is_asked():
    asked = []
    before = signal.signal(signal.SIGINT, lambda *given: asked.append(given[0]))
    try:
        with Interrupts() as interrupts:
            interrupt()
            assert asked == []
            with interrupts.allowed():
                assert asked == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
    assert asked == [signal.SIGINT]  # once


class Dropped:
    def __init__(self, ends):
        self.ends = ends

    def __del__(self):
        ends(self.ends)


class Held:
    def __init__(self, done):
        weakref.finalize(self, ends, done)


def ends(done):
    interrupt()
    done.append("ended")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [Dropped, Held])
def test_an_interrupt_within_a_finalizer_comes_again_after_it(kind):
    """Python would print and forget it, and leave the finalizer half done."""
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts, interrupts.allowed():  # noqa: PT012
        kind(done)  # nobody keeps it
        done.append("goes on")
        time.sleep(10)
        done.append("not reached")
    assert done == ["ended", "goes on"]
