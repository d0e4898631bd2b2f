"""Hangs, interrupts, and the end of the kernel or of its server, each within its time."""

import os
import signal
import time

import pytest

from tests.runtime.conftest import BUSY, alive, fail, gone, start_busy

GONE_SECONDS = 2.0  # the promise: ranks are gone so soon after their notebook was killed


def test_a_hang_in_python_ends_with_every_stack(kernel):
    out = fail(
        kernel,
        """
def asleep(worker):
    if worker.rank == 1:
        time.sleep(1000)
    dist.barrier()
launch(asleep, workers=3, timeout=4)
""",
    )
    first = out.error.split("\n")[0]
    assert "no sign of life from any rank for 4 s" in first
    assert "only rank 1 is not in a collective" in first
    assert "time.sleep(1000)" in out.shown
    assert out.shown.count("dist.barrier()") >= 2
    assert "launch(timeout=" in out.shown


def test_a_stopped_rank_counts_as_a_hang(kernel):
    out = fail(
        kernel,
        """
def stopped(worker):
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()
launch(stopped, timeout=4)
""",
    )
    assert "rank 1 was not answering" in out.shown
    assert "only rank 1 is not in a collective" in out.error


def interrupted(out) -> bool:
    """IPython shows no error where the interrupt fell between two lines, or on its own code."""
    return out.error is None or out.error.startswith("KeyboardInterrupt")


def test_interrupt(kernel):
    ident = start_busy(kernel)
    kernel.interrupt()
    out = kernel.result(ident, seconds=20)
    assert out.error.startswith("KeyboardInterrupt")
    assert out.shown.strip() == "KeyboardInterrupt: the ranks are stopped."  # no frames


def test_interrupts_in_a_row(kernel):
    """However they fall: in the call, in the clearing up, after it."""
    for pause in (0, 0.001, 0.005, 0.02, 0.05):
        ident = start_busy(kernel)
        for _ in range(3):
            kernel.interrupt()
            time.sleep(pause)
        out = kernel.result(ident, seconds=20)
        assert interrupted(out)
        assert gone(lambda: kernel.children()[1:], 20), kernel.children()


def test_interrupts_at_any_moment_of_short_calls(kernel):
    """A call either returns or is interrupted; the next one always works."""
    for tenth in range(0, 25, 3):
        ident = kernel.start(
            "with Cluster() as c:\n"
            "    c.run(sum_ranks)\n"
            "    print('ready', flush=True)\n"
            "    while True:\n"
            "        assert list(c.run(sum_ranks)) == [1.0, 1.0]"
        )
        kernel.result(ident, until="ready")
        time.sleep(tenth / 1000)
        kernel.interrupt()
        out = kernel.result(ident, seconds=20)
        assert interrupted(out), out


@pytest.mark.alone
def test_kernel_killed_while_ranks_run(own_kernel):
    """A fork of it lives on, and keeps each of its sockets open."""
    own_kernel.settle()  # a server that still imports would notice it later
    own_kernel.do("child = os.fork()\nif child == 0:\n    time.sleep(30)\n    os._exit(0)")
    start_busy(own_kernel)
    killed = {p.pid: p for p in own_kernel.processes(spares=True) if p.pid != own_kernel.pid}
    (child,) = [p for p in killed.values() if "ipykernel" in " ".join(p.cmdline())]
    del killed[child.pid]
    assert len(killed) >= 4  # the server, three ranks and the spares
    os.kill(own_kernel.pid, signal.SIGKILL)
    assert gone(lambda: [p for p in killed.values() if alive(p)], GONE_SECONDS)
    child.kill()


def test_kernel_ends_with_ranks_alive(own_kernel):
    """Ranks of an open cluster, and ranks that are stopped, for a debugger."""
    kernel = own_kernel
    kernel.do("cluster = Cluster(); cluster.run(sum_ranks)")
    assert "ZeroDivisionError" in kernel.run("launch(lambda worker: 1 / 0)").error
    before = kernel.processes(spares=True)
    assert len(before) >= 6
    process = kernel.manager.provisioner.process
    kernel.client.shutdown()
    began = time.monotonic()
    process.wait(timeout=20)  # by itself: nothing in it waits for the ranks
    assert time.monotonic() - began < 10
    assert gone(lambda: [p for p in before if p.pid != kernel.pid and alive(p)], 20)


def test_kernel_ends_while_its_server_still_imports(own_kernel):
    process = own_kernel.manager.provisioner.process  # `import launch` has begun to warm the server
    own_kernel.client.shutdown()
    process.wait(timeout=20)
    assert gone(lambda: own_kernel.processes(spares=True), 10)


def test_server_killed_while_ranks_run(kernel):
    server = kernel.server()
    ident = start_busy(kernel)
    server.send_signal(signal.SIGKILL)
    out = kernel.result(ident, seconds=20)
    assert "the process that starts the ranks is gone" in out.error.split("\n")[0]
    assert "run the cell again" in out.error
    assert gone(lambda: kernel.children()[1:], 20)


def test_nested_ranks_end_when_the_outer_is_interrupted(kernel):
    ident = kernel.start(BUSY + "launch(lambda worker: launch(busy, workers=2), workers=1)")
    kernel.result(ident, until="busy")
    kernel.interrupt()
    assert kernel.result(ident, seconds=20).error.startswith("KeyboardInterrupt")
