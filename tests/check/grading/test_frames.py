"""Messages through a pipe: whole, of limited size, in time."""

import os
import threading
import time

import pytest

from helpers.check.grading import frames

pytestmark = pytest.mark.timeout(100)  # nobody writes into some of the pipes


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


def ending(call, *given, **options):
    """The error that ends this call within 10 s; None if it does not end, or ends well."""
    found = []

    def run():
        try:
            call(*given, **options)
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return found[0] if found else None


def test_silence(pipe):
    os.write(pipe[1], frames.LENGTH.pack(10) + b"half")
    assert ending(frames.read, pipe[0], soon(0.3)) is frames.Silence
    assert ending(frames.read, pipe[0], soon(-1), alive=lambda: False) is frames.Silence


def test_it_ends_when_it_is_told_to(pipe):
    assert ending(frames.read, pipe[0], soon(60), alive=lambda: False) is frames.Ended
    os.write(pipe[1], frames.LENGTH.pack(10) + b"half")
    answers = [True, True, False]  # for the length, for a half, and for the rest
    assert ending(frames.read, pipe[0], soon(60), alive=lambda: answers.pop(0)) is frames.Ended
    assert answers == []


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


def test_the_other_side_has_gone(pipe):
    os.close(pipe[1])
    assert ending(frames.read, pipe[0], soon(60)) is frames.Ended


def test_nobody_reads(pipe):
    os.close(pipe[0])
    with pytest.raises(frames.Ended):
        frames.write(pipe[1], b"x")


def test_the_largest_message_is_read(pipe, monkeypatch):
    monkeypatch.setattr(frames, "LARGEST", 3)
    for message in (b"one", b"four"):
        frames.write(pipe[1], message)
    assert frames.read(pipe[0], soon()) == b"one"
    with pytest.raises(ValueError, match=r"^a message of 4 bytes; at most 3 are read$"):
        frames.read(pipe[0], soon())


def test_a_reader_that_has_stopped_does_not_stop_the_writer(pipe):
    much = bytes(1 << 20)
    assert ending(frames.write, pipe[1], much, soon(0.3)) is frames.Silence
    assert ending(frames.write, pipe[1], much, soon(60), alive=lambda: False) is frames.Ended
