"""Messages through a pipe: whole, of limited size, in time."""

import os
import threading
import time

import pytest

from helpers.check.grading import frames


def soon(seconds=10.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def test_messages_arrive_whole_and_in_order(pipe):
    out, into = pipe
    large = os.urandom(3_000_000)

    def send():
        for message in (b"", b"one", large):
            frames.write(into, message)

    thread = threading.Thread(target=send)
    thread.start()
    assert [frames.read(out, soon()) for _ in range(3)] == [b"", b"one", large]
    thread.join()


def test_silence(pipe):
    frames_began = time.monotonic()
    os.write(pipe[1], frames.LENGTH.pack(10) + b"half")
    with pytest.raises(frames.Silence):
        frames.read(pipe[0], soon(0.3))
    assert time.monotonic() - frames_began < 5


def test_the_other_side_has_gone(pipe):
    os.close(pipe[1])
    with pytest.raises(frames.Ended):
        frames.read(pipe[0], soon())


def test_nobody_reads(pipe):
    os.close(pipe[0])
    with pytest.raises(frames.Ended):
        frames.write(pipe[1], b"x")


def test_it_ends_when_it_is_told_to(pipe):
    with pytest.raises(frames.Ended):
        frames.read(pipe[0], soon(60), alive=lambda: False)


def test_a_message_that_is_too_large_is_not_read(pipe):
    os.write(pipe[1], frames.LENGTH.pack(frames.LARGEST + 1))
    with pytest.raises(ValueError, match="at most"):
        frames.read(pipe[0], soon())


def test_a_reader_that_has_stopped_does_not_stop_the_writer(pipe):
    with pytest.raises(frames.Silence):
        frames.write(pipe[1], bytes(1 << 20), soon(0.3))
    with pytest.raises(frames.Ended):
        frames.write(pipe[1], bytes(1 << 20), soon(60), alive=lambda: False)
