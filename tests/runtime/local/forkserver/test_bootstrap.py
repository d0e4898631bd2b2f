"""A fork becomes a rank: its outputs, its descriptors, its end."""

import multiprocessing
import os
import signal
import socket
import sys
import time

import pytest

from helpers.runtime.local.channel import readable
from helpers.runtime.local.forkserver import bootstrap

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


def told(act) -> str:
    """What `act` returns in a fork of this process."""
    reading, writing = os.pipe()

    def tell():
        try:
            text = repr(act())
        except BaseException as error:
            text = repr(error)
        os.write(writing, text.encode())

    child = forked(tell)
    os.close(writing)
    with open(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def test_a_rank_handles_signals_as_a_new_process_does():
    def look():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the server does
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(os.open(os.devnull, os.O_WRONLY | os.O_NONBLOCK))
        bootstrap.lead_a_session()
        handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1)]
        right = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN]
        return handlers == right, signal.set_wakeup_fd(-1), os.getsid(0) == os.getpid()

    assert told(look) == "(True, -1, True)"


@linux
def test_a_rank_adopts_what_its_children_leave():
    """So that their end is the rank's to see, and the server's after it."""

    def adopt():
        bootstrap.lead_a_session()
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            if (orphan := os.fork()) == 0:
                time.sleep(100)
            os.write(writing, str(orphan).encode())
            os._exit(0)
        os.waitpid(child, 0)
        orphan = int(os.read(reading, 20))
        os.kill(orphan, signal.SIGKILL)
        return os.waitpid(orphan, 0) == (orphan, signal.SIGKILL)

    assert told(adopt) == "True"


def test_a_rank_forgets_this_package_and_the_program_of_the_server():
    def look():
        multiprocessing.set_start_method("fork", force=True)
        sys.path[:] = [path for path in sys.path if path != bootstrap.ROOT]
        sys.modules["helpers_of_mine"] = sys.modules["__main__"]
        main = sys.modules["__main__"]
        bootstrap.forget(bootstrap.own_modules())
        bootstrap.forget([])
        left = [name for name in sys.modules if name.split(".")[0] == "helpers"]
        again = sys.modules["__main__"] is main, "helpers_of_mine" in sys.modules
        started = multiprocessing.get_start_method(allow_none=True)
        return left, *again, started, sys.path.count(bootstrap.ROOT)

    assert told(look) == "([], False, True, None, 1)"
    assert os.path.isfile(os.path.join(bootstrap.ROOT, "helpers", "__init__.py"))


def test_a_rank_takes_its_place_in_a_network_before_it_imports_pytorch():
    """An import may start threads, and a process with threads enters no user namespace."""

    def look():
        bootstrap.forget(bootstrap.own_modules())
        from helpers.runtime.local import network
        from helpers.runtime.local.channel import Channel

        def take_place(message, link):
            raise KeyError(message, "helpers.runtime.local.rank.program" in sys.modules)

        network.take_place = take_place
        here, there = socket.socketpair()
        Channel(here).send("make", 3)
        bootstrap.work(there.detach(), -1)

    assert told(look) == "KeyError(('make', 3), False)"


def test_descriptors_reach_a_process_that_is_spawned():
    """Each in its place. The notebook hangs up, and so it ends before it imports PyTorch."""
    here, there = socket.socketpair()
    (out, out_there), (err, err_there), (stacks, stacks_there) = (os.pipe() for _ in range(3))
    fds = (there.fileno(), out_there, err_there, stacks_there)
    here.shutdown(socket.SHUT_WR)
    context = multiprocessing.get_context("spawn")
    handed = tuple(map(bootstrap.Handed, fds))
    process = context.Process(target=bootstrap.become_rank, args=handed)
    process.start()
    process.join(100)
    assert process.exitcode == bootstrap.START_FAILED
    for fd in fds[1:]:
        os.close(fd)
    with open(out, "rb") as printed, open(err, "rb") as words:
        assert printed.read() == b""
        assert b"EOFError" in words.read()
    os.close(stacks)
    here.close()
    there.close()


def test_what_is_closed_already_is_no_error():
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    os.close(fds[1])
    bootstrap.close(fds)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
