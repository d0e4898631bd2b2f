"""A count in shared memory: raised, waited for; no signal and no neighbour disturbs it."""

import ctypes
import errno
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from helpers.comm.shared_memory import semaphores as shared_semaphores
from helpers.comm.shared_memory.semaphores import NBYTES, Semaphore, available

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


def test_errors_of_the_system_are_raised(two, monkeypatch):
    """Only a timeout and a signal are none."""
    one, other = two

    def fails(number):
        return lambda *_: ctypes.set_errno(number) or -1

    for number in (errno.ETIMEDOUT, errno.EINTR):
        fake = SimpleNamespace(sem_clockwait=fails(number))
        monkeypatch.setattr(shared_semaphores, "sleeping", fake)
        assert not one.wait(1)
    fake.sem_clockwait = fails(errno.EINVAL)
    with pytest.raises(OSError, match="Invalid argument") as caught:
        one.wait(1)
    assert caught.value.errno == errno.EINVAL
    monkeypatch.setattr(shared_semaphores, "quick", SimpleNamespace(sem_init=fails(errno.ENOSYS)))
    with pytest.raises(OSError, match="sem_init") as caught:
        other.init()
    assert caught.value.errno == errno.ENOSYS


def test_it_waits_until_the_time_is_over(two, monkeypatch):
    """2.75 s from second 7.5 on, in nanoseconds."""
    asked = []

    def wait(at, clock, end):
        asked.append((at, clock, end._obj.seconds, end._obj.nanoseconds))
        return 0

    monkeypatch.setattr(shared_semaphores, "sleeping", SimpleNamespace(sem_clockwait=wait))
    monkeypatch.setattr(time, "monotonic_ns", lambda: 7_500_000_000)
    assert two[1].wait(2.75)
    assert asked == [(two[1].at, time.CLOCK_MONOTONIC, 10, 250_000_000)]
