"""A count in shared memory: raised, waited for; no signal and no neighbour disturbs it."""

import signal
import threading
import time

import pytest
import torch

from helpers.comm.shared_semaphores import NBYTES, Semaphore, available

pytestmark = pytest.mark.skipif(not available(), reason="needs Linux with glibc 2.30")


@pytest.fixture
def two():
    """Two neighbours, as in a barrier's table."""
    memory = torch.zeros(2 * NBYTES, dtype=torch.uint8)
    found = [Semaphore(memory.data_ptr() + place * NBYTES) for place in range(2)]
    for semaphore in found:
        semaphore.init()
    yield found
    del memory


def test_each_wait_takes_one_and_neighbours_count_apart(two):
    one, other = two
    assert not one.soon(0.0)
    assert not one.wait(0.01)
    for _ in range(3):
        one.post()
    assert (one.count(), other.count()) == (3, 0)
    assert one.soon(0.0)
    assert one.wait(10)
    assert one.soon(0.01)
    assert one.count() == 0
    assert not one.soon(0.0)


def test_neighbours_have_room_and_cache_lines_of_their_own(two):
    """`sem_t` has 32 bytes; processors move 64, and polling one must not slow down the other."""
    one, other = two
    assert (other.at.value - one.at.value) % 64 == 0
    other.post()
    one.init()  # ranks make theirs while others raise theirs already
    assert (one.count(), other.count()) == (0, 1)


@pytest.mark.parametrize("how", ["soon", "wait"])
def test_a_count_that_rises_meanwhile_ends_the_wait(two, how):
    timer = threading.Timer(0.05, two[0].post)
    timer.start()
    began = time.monotonic()
    assert getattr(two[0], how)(20)
    assert time.monotonic() - began < 15
    timer.join()
    assert two[0].count() == 0


def test_a_signal_with_a_handler_is_no_error(two):
    """A profiler's, for example; the barrier looks at the other ranks, and waits again."""
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert not two[0].wait(0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen
