"""Harm to the notebook's side: interrupts, its end, its server's, its threads, forks and disk."""

import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from tests.runtime.conftest import alive, gone

BUSY = """
def busy(worker):
    print("busy", flush=True)
    while True:
        time.sleep(0.01)
"""
GONE_SECONDS = 2.0  # the promise: ranks are gone so soon after their notebook was killed


def start_busy(kernel, call="launch(busy, workers=3)"):
    """Ranks at work, and the cell that they work for."""
    ident = kernel.start(BUSY + call)
    kernel.result(ident, until="busy")
    return ident


def test_interrupt(kernel):
    ident = start_busy(kernel)
    kernel.interrupt()
    out = kernel.result(ident, seconds=20)
    assert out.error.startswith("KeyboardInterrupt")


def test_interrupts_in_a_row(kernel):
    """However they fall: in the call, in the clearing up, after it."""
    for pause in (0, 0.001, 0.005, 0.02, 0.05):
        ident = start_busy(kernel)
        for _ in range(3):
            kernel.interrupt()
            time.sleep(pause)
        out = kernel.result(ident, seconds=20)
        assert out.error.startswith("KeyboardInterrupt")
        assert gone(lambda: kernel.children()[1:], 5), kernel.children()


def test_interrupts_at_any_moment_of_short_calls(kernel):
    """A call either returns or is interrupted; the next one always works."""
    for tenth in range(25):
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
        assert out.error.startswith("KeyboardInterrupt"), out


def test_interrupted_cluster_says_what_was_lost(kernel):
    kernel.do("cluster = Cluster(); cluster.run(sum_ranks)")
    ident = start_busy(kernel, "cluster.run(busy)")
    kernel.interrupt()
    out = kernel.result(ident, seconds=20)
    assert out.error.startswith("KeyboardInterrupt")
    assert "worker.state" in out.stdout
    kernel.do("assert list(cluster.run(sum_ranks)) == [1.0, 1.0]; cluster.close()")


@pytest.mark.parametrize("fork", [False, True], ids=["", "with a fork of it alive"])
def test_kernel_killed_while_ranks_run(own_kernel, fork):
    kernel = own_kernel()
    kernel.settle()
    if fork:  # it holds every socket of the kernel open
        kernel.do("child = os.fork()\nif child == 0:\n    time.sleep(30)\n    os._exit(0)")
    start_busy(kernel)
    killed = {p.pid: p for p in kernel.children()}
    if fork:
        (child,) = [p for p in killed.values() if "ipykernel" in " ".join(p.cmdline())]
        del killed[child.pid]
    assert len(killed) == 4  # the server and three ranks
    os.kill(kernel.pid, signal.SIGKILL)
    assert gone(lambda: [p for p in killed.values() if alive(p)], GONE_SECONDS)
    if fork:
        child.kill()


def test_kept_lines_are_removed_though_the_kernel_was_killed(own_kernel):
    kernel = own_kernel()
    kernel.do("launch(lambda worker: print('line\\n' * 5000), workers=1)")
    assert list(kernel.temp.rglob("printed-*"))
    os.kill(kernel.pid, signal.SIGKILL)
    assert gone(kernel.processes, 10)
    assert not list(kernel.temp.rglob("helpers-*"))


@pytest.mark.parametrize("restart", [False, True], ids=["shut down", "restarted"])
def test_kernel_ends_with_a_cluster_open(own_kernel, restart):
    kernel = own_kernel()
    kernel.do("cluster = Cluster(); cluster.run(sum_ranks)")
    before = kernel.processes()
    assert len(before) >= 4
    process = kernel.manager.provisioner.process
    kernel.client.shutdown(restart=restart)
    began = time.monotonic()
    process.wait(timeout=20)  # by itself: nothing in it waits for the ranks
    assert time.monotonic() - began < 10
    assert gone(lambda: [p for p in before if p.pid != kernel.pid and alive(p)], 5)


def test_kernel_ends_while_its_server_still_imports(own_kernel):
    kernel = own_kernel()  # importing launch has begun to warm the server
    process = kernel.manager.provisioner.process
    kernel.client.shutdown()
    process.wait(timeout=20)
    assert gone(kernel.processes, 10)


def test_server_killed_while_ranks_run(kernel):
    server = kernel.server()
    ident = start_busy(kernel)
    server.send_signal(signal.SIGKILL)
    out = kernel.result(ident, seconds=20)
    assert "the process that starts the ranks is gone" in out.error.split("\n")[0]
    assert "run the cell again" in out.error
    assert gone(lambda: kernel.children()[1:], 5)


def test_server_killed_between_calls(kernel):
    kernel.do("cluster = Cluster(); cluster.run(sum_ranks)")
    (server,) = [p for p in kernel.children() if p.ppid() == kernel.pid]
    server.send_signal(signal.SIGKILL)
    assert gone(lambda: alive(server), 5)
    kernel.do("assert list(launch(sum_ranks)) == [1.0, 1.0]")  # nothing of it was in use
    out = kernel.run("cluster.run(sum_ranks)")
    assert "the process that starts the ranks is gone" in out.error
    kernel.do("assert list(cluster.run(sum_ranks)) == [1.0, 1.0]; cluster.close()")


def test_first_generation_killed(own_kernel):
    """Its ranks end; the second takes over."""
    kernel = own_kernel()
    kernel.do("launch(sum_ranks)")
    first = [p for p in kernel.children() if p.ppid() != kernel.pid]
    for process in first:
        process.kill()
    assert gone(lambda: [p for p in first if alive(p)], 5)
    out = kernel.run("launch(sum_ranks)")
    assert out.error is None, out


def test_flood(kernel):
    began = time.monotonic()
    out = kernel.do(
        """
def flood(worker):
    for i in range(100_000):
        print("line", i)
launch(flood)
"""
    )
    assert time.monotonic() - began < 50
    assert out.stdout.count("\n") < 2_100
    assert "more lines are in" in out.stdout
    kernel.do(
        f"""
import re
text = {out.stdout[-600:]!r}
files = re.findall(r"are in (\\S+) until", text)
assert len(files) == 2, text
kept = sum(len(open(f).readlines()) for f in files)
assert kept + 2000 == 200_000, kept
folder = os.path.dirname(files[0])
assert os.stat(folder).st_mode & 0o777 == 0o700
for f in files:
    os.remove(f)
os.rmdir(folder)
"""
    )


def test_bytes_that_are_not_text(kernel):
    out = kernel.do(
        """
def noise(worker):
    os.write(1, bytes(range(256)) + b"\\nafter\\n")
    os.write(2, b"\\xff\\xfe no newline")
launch(noise, workers=1)
"""
    )
    assert "[rank 0] after" in out.stdout
    assert "no newline" in out.stderr


def test_nested_launch(kernel):
    kernel.do(
        """
def outer(worker):
    inner = launch(sum_ranks, workers=2, x=10.0 * worker.rank)
    t = torch.ones(1)
    dist.all_reduce(t)
    return [*inner, t.item()]
runs = launch(outer)
assert list(runs) == [[1.0, 1.0, 2.0], [21.0, 21.0, 2.0]], runs
""",
        seconds=120,
    )


def test_nested_error_names_both(kernel):
    out = kernel.run("launch(lambda worker: launch(lambda inner: 1 / 0, workers=1), workers=1)")
    assert "rank 0 raised WorkerError: rank 0 raised ZeroDivisionError" in out.error


def test_nested_ranks_end_when_the_outer_is_interrupted(kernel):
    ident = kernel.start(BUSY + "launch(lambda worker: launch(busy, workers=2), workers=1)")
    kernel.result(ident, until="busy")
    kernel.interrupt()
    assert kernel.result(ident, seconds=20).error.startswith("KeyboardInterrupt")


def test_two_notebooks_at_once(kernel, own_kernel):
    other = own_kernel()
    cell = "for _ in range(5): assert list(launch(sum_ranks, workers=3)) == [3.0] * 3"
    idents = [(k, k.start(cell)) for k in (kernel, other)]
    for k, ident in idents:
        assert k.result(ident, seconds=120).error is None


def test_threads(kernel):
    """From a thread that ends; from several at once; on one cluster from several at once."""
    kernel.do(
        """
from concurrent.futures import ThreadPoolExecutor
done = []
thread = threading.Thread(target=lambda: done.append(Cluster()))
thread.start(); thread.join()
thread = threading.Thread(target=lambda: done.append(done[0].run(sum_ranks)))
thread.start(); thread.join()
assert list(done[1]) == [1.0, 1.0]
assert list(done[0].run(sum_ranks)) == [1.0, 1.0]
done[0].close()
with ThreadPoolExecutor(4) as pool:
    for runs in pool.map(lambda x: launch(sum_ranks, x=x), range(8)):
        assert runs[0] == runs[1]
    with Cluster() as cluster:
        results = list(pool.map(lambda x: cluster.run(sum_ranks, x=x)[0], range(8)))
assert results == [2.0 * x + 1 for x in range(8)], results
del done, pool, thread
"""
    )


def test_first_call_from_a_thread_that_ends(own_kernel):
    kernel = own_kernel()
    kernel.do(
        """
cluster = Cluster()
thread = threading.Thread(target=cluster.run, args=(sum_ranks,))
thread.start(); thread.join()
time.sleep(0.5)
assert list(cluster.run(sum_ranks)) == [1.0, 1.0]
"""
    )


def test_a_fork_of_the_kernel(kernel):
    """It starts ranks of its own, and takes nothing of the kernel's along when it ends."""
    kernel.do(
        """
with Cluster() as cluster:
    cluster.run(sum_ranks)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(list(cluster.run(sum_ranks)) != [1.0, 1.0])
            code += int(list(launch(sum_ranks)) != [1.0, 1.0])
            cluster.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert list(cluster.run(sum_ranks)) == [1.0, 1.0]
""",
        seconds=120,
    )


def test_working_folder_deleted(kernel):
    kernel.do(
        """
home = os.getcwd()
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
def where(worker):
    return os.path.samestat(os.stat("."), os.stat("/")), os.stat(".").st_ino
try:
    os.getcwd()
except FileNotFoundError:
    pass
else:
    raise AssertionError("it is still there")
(in_root, inode), _ = launch(where)
assert not in_root and inode == os.stat(".").st_ino
os.chdir(home)
"""
    )


def small_disk(folder) -> bool:
    """A file system of 64 KiB there, if this user may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    return shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0


def test_no_disk_left(own_kernel):
    kernel = own_kernel()
    if not small_disk(kernel.temp):
        pytest.skip("needs the right to mount a small file system")
    try:
        (kernel.temp / "filler").write_bytes(b"x" * 65536)
    except OSError:
        pass
    try:
        out = kernel.do(
            """
def much(worker):
    for i in range(5000):
        print("line", i)
    return torch.ones(1_000_000)
runs = launch(much)
assert runs[1].sum() == 1_000_000
launch(sum_ranks)
"""
        )
        assert "more lines" in out.stdout
        kernel.settle()
        out = kernel.run("launch(lambda worker: 1 / 0)")
        assert "ZeroDivisionError" in out.error
        assert [p.name for p in kernel.temp.rglob("*") if p.is_file()] == ["filler"]
    finally:
        kernel.shutdown()
        subprocess.run(["umount", str(kernel.temp)], check=True)


def test_two_hundred_calls(kernel):
    """Nothing grows: files, threads, shared memory (the fixture looks), and the memory of both."""
    call = "for _ in range({}): launch(sum_ranks, workers=1)"
    kernel.do(call.format(20))
    both = [psutil.Process(kernel.pid), kernel.server()]
    before = [p.memory_info().rss for p in both]
    kernel.do(call.format(200), seconds=120)
    for process, rss in zip(both, before, strict=True):
        assert process.memory_info().rss - rss < 16e6
