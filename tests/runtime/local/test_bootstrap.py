"""A fork becomes a rank: its outputs, its descriptors, its end."""

import os
import signal
import socket
import sys
import time

import pytest

from helpers.runtime.local import bootstrap
from helpers.runtime.local.channel import readable

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")


def forked(act) -> int:
    """Call `act` in a fork of this process."""
    if child := os.fork():
        return child
    try:
        act()
    finally:
        os._exit(1)


def test_each_output_has_its_own_pipe_and_the_input_is_empty():
    (out, out_there), (err, err_there) = os.pipe(), os.pipe()

    def write():
        bootstrap.redirect(out_there, err_there)
        os.write(1, b"output" + os.read(0, 10))
        os.write(2, b"error")

    os.waitpid(forked(write), 0)
    assert (os.read(out, 10), os.read(err, 10)) == (b"output", b"error")
    for fd in (out, out_there, err, err_there):
        os.close(fd)


def test_a_rank_lets_go_of_what_is_not_its_own_and_says_that_it_could_not_start():
    """Before it hears its first message; the notebook hangs up instead of sending one."""
    here, there = socket.socketpair()
    pipes = [os.pipe() for _ in range(4)]
    (out, out_there), (err, err_there), (stacks, stacks_there), (foreign, foreign_there) = pipes

    def become():
        here.close()
        sys.stderr = sys.__stderr__  # pytest's own has another descriptor
        bootstrap.become_rank(
            there.fileno(), out_there, err_there, stacks_there, foreign=[foreign_there]
        )

    child = forked(become)
    there.close()
    for _, end in pipes:
        os.close(end)
    assert readable(foreign, 20)  # its only other holder has closed it
    assert os.read(foreign, 1) == b""
    assert os.getsid(child) == child
    here.close()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == bootstrap.START_FAILED
    with open(err, "rb") as words:
        assert b"EOFError" in words.read()
    for fd in (out, stacks, foreign):
        os.close(fd)


@linux
def test_a_rank_ends_with_the_server_that_forked_it():
    reading, writing = os.pipe()

    def serve():
        def work():
            bootstrap.lead_a_session()
            os.write(writing, b"ready")
            time.sleep(100)

        forked(work)
        time.sleep(100)

    server = forked(serve)
    os.close(writing)
    assert os.read(reading, 5) == b"ready"
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    assert readable(reading, 20)  # the rank held the other end
    assert os.read(reading, 1) == b""
    os.close(reading)
