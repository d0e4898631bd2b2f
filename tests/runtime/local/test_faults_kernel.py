"""What a notebook does around its ranks: floods, nesting, threads, forks, folders, a full disk."""

import base64
import shutil
import subprocess
import time

import psutil


def test_flood(kernel):
    began = time.monotonic()
    out = kernel.do(
        """
def flood(worker):
    for i in range(20_000):
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
[file] = set(re.findall(r"are in (\\S+) until", text))
assert len(open(file).readlines()) + 2000 == 40_000
folder = os.path.dirname(file)
assert os.stat(folder).st_mode & 0o777 == 0o700
os.remove(file)
os.rmdir(folder)
"""
    )


def test_nested_launch(kernel):
    """The ranks of a cluster start their own ranks, at once; an error names both."""
    kernel.do(
        """
def outer(worker):
    inner = launch(sum_ranks, workers=2, x=10.0 * worker.rank)
    t = torch.ones(1)
    dist.all_reduce(t)
    return [*inner, t.item()]
cluster = Cluster()
runs = cluster.run(outer)
assert list(runs) == [[1.0, 1.0, 2.0], [21.0, 21.0, 2.0]], runs
""",
        seconds=120,
    )
    fails = "worker.rank or launch(lambda inner: 1 / 0, workers=1)"
    out = kernel.run(f"cluster.run(lambda worker: {fails})")
    assert "rank 0 raised WorkerError: rank 0 raised ZeroDivisionError" in out.error
    kernel.do("del cluster")


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


def fill(folder):
    """Leave no byte free."""
    with (folder / "filler").open("wb", buffering=0) as file:
        while shutil.disk_usage(folder).free:
            file.write(b"x" * 65536)


def test_two_notebooks_at_once_and_no_disk_left(kernel, own_kernel):
    """The other's first call is from a thread that ends; later its disk is full."""
    other = own_kernel
    other.do(
        """
cluster = Cluster()
thread = threading.Thread(target=cluster.run, args=(sum_ranks,))
thread.start(); thread.join()
time.sleep(0.5)
assert list(cluster.run(sum_ranks)) == [1.0, 1.0]
cluster.close()
"""
    )
    cell = "for _ in range(3): assert list(launch(sum_ranks, workers=3)) == [3.0] * 3"
    idents = [(k, k.start(cell)) for k in (kernel, other)]
    for k, ident in idents:
        assert k.result(ident, seconds=120).error is None
    other.settle()  # imports try whether they can write there, and free that page again
    if not small_disk(other.temp):
        return  # it needs the right to mount a small file system
    try:
        fill(other.temp)
        out = other.do(
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
        other.settle()
        out = other.run("launch(lambda worker: 1 / 0)")
        assert "ZeroDivisionError" in out.error
        assert [p.name for p in other.temp.rglob("*") if p.is_file()] == ["filler"]
    finally:
        other.shutdown()
        subprocess.run(["umount", str(other.temp)], check=True)


def test_many_calls(kernel):
    """Nothing grows: files, threads, shared memory (the fixture looks), and the memory of both."""
    call = "for _ in range({}): launch(sum_ranks, workers=1)"
    kernel.do(call.format(10))
    both = [psutil.Process(kernel.pid), kernel.server()]
    before = [p.memory_info().rss for p in both]
    kernel.do(call.format(30), seconds=120)
    for process, rss in zip(both, before, strict=True):
        assert process.memory_info().rss - rss < 4e6  # 130 kB a call


def test_a_live_curve_grows_in_one_place(kernel):
    out = kernel.do(
        """
def train(worker):
    for step in range(8):
        worker.log(step=step, loss=1 / (step + 1) + worker.rank)
        time.sleep(0.2)
runs = launch(train, live="loss")
assert len(runs.frame()) == 16
"""
    )
    pictures = [d["image/png"] for d in out.displays if "image/png" in d]
    assert len(set(pictures)) >= 2  # drawn, and drawn again
    assert base64.b64decode(pictures[-1]).startswith(b"\x89PNG")
    assert not out.stderr


def test_one_bar_for_all_ranks(kernel):
    out = kernel.do(
        """
def train(worker):
    for _ in worker.track(range(20), label="train"):
        time.sleep(0.02)
launch(train, workers=3);
"""
    )
    last = out.displays[-1]
    assert last["text/html"].count("20/20") == 3
    assert "train rank 2: 20/20" in last["text/plain"]


def test_functions_of_a_cell_are_shown_by_inspect_on_the_rank(kernel):
    kernel.do(
        """
def f(worker):
    import inspect
    return inspect.getsource(f)
assert launch(f)[0].startswith("def f(worker):")
"""
    )
