"""Ranks that fail, die or misbehave, in a real kernel; `kernel` looks afterwards."""

import pytest

from tests.runtime.conftest import fail


def test_one_raises_while_the_others_wait(kernel):
    out = fail(
        kernel,
        """
def boom(worker):
    if worker.rank == 1:
        loss = 1 / 0
    dist.barrier()
launch(boom, workers=3)
""",
    )
    assert out.error.startswith("WorkerError: rank 1 raised ZeroDivisionError: division by zero")
    assert "loss = 1 / 0" in out.shown
    assert "Cell In[" in out.shown
    assert "line 4" in out.shown
    assert "rank 0 was waiting in barrier" in out.shown
    assert "rank 2 was waiting in barrier" in out.shown
    assert "connection" not in out.shown.lower()
    assert "helpers/runtime" not in out.shown


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("os._exit(3)", "rank 1 ended with exit code 3 before it returned"),
        ("os._exit(0)", "rank 1 ended with exit code 0 before it returned"),
        ("sys.exit('enough')", "rank 1 called sys.exit(enough)"),
        ("raise KeyboardInterrupt", "rank 1 raised KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by SIGKILL: out of memory?"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "rank 1 was killed by SIGTERM"),
        ("os.abort()", "rank 1 was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "rank 1 was killed by SIGSEGV"),
        ("open('/dev/shm/none/such')", "rank 1 raised FileNotFoundError"),
        ("sys.stdout.close(); raise OSError('mine')", "rank 1 raised OSError: mine"),
        ("os.close(1); os.close(2); raise OSError('mine')", "rank 1 raised OSError: mine"),
        ("raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", "raised ExceptionGroup: two"),
        ("raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'no')", "raised UnicodeDecodeError"),
        ("dist.destroy_process_group(); dist.barrier()", "rank 1 raised ValueError"),
        ("torch.zeros(2) @ torch.zeros(3)", "rank 1 raised RuntimeError"),
    ],
)
def test_the_culprit_is_named(kernel, deed, said):
    out = fail(
        kernel,
        f"""
def deed(worker):
    if worker.rank == 1:
        {deed}
    dist.all_reduce(torch.ones(3))
launch(deed, workers=3)
""",
    )
    first = out.error.split("\n")[0]
    assert said in first
    assert "rank 0" not in first
    assert deed.split("; ")[-1] in out.shown or "os._exit" in deed or "signal" in deed


def test_a_crash_shows_the_line_that_it_happened_in(kernel):
    out = fail(
        kernel,
        """
import ctypes
def crash(worker):
    ctypes.string_at(0)
launch(crash)
""",
    )
    assert "ctypes.string_at(0)" in out.shown


def test_an_exception_that_cannot_travel_is_still_told(kernel):
    out = fail(
        kernel,
        """
class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()
class Mute(Exception):
    def __str__(self):
        raise RuntimeError
def odd(worker):
    raise Odd("this", "that") if worker.rank else Mute()
launch(odd, workers=1) if False else None
try:
    launch(odd, workers=1)
except WorkerError as error:
    assert error.rank == 0 and "Mute" in str(error), error
def odder(worker):
    raise Odd("this", "that")
launch(odder)
""",
    )
    assert "raised Odd: this and that" in out.error
    assert "failed the same way" in out.error


def test_a_fork_of_a_rank_that_returns_too_does_not_answer(kernel):
    kernel.do(
        """
def forks(worker):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return worker.rank
with Cluster() as cluster:
    for _ in range(3):
        assert list(cluster.run(forks)) == [0, 1]
def forks_and_fails(worker):
    child = os.fork()
    if child == 0:
        raise ValueError("only the child")
    os.waitpid(child, 0)
    return worker.rank
assert list(launch(forks_and_fails)) == [0, 1]
"""
    )


def test_children_of_a_rank_end_with_it(kernel):
    """Though they hold its channel and its pipes open."""
    kernel.do(
        """
def leaves_children(worker):
    if os.fork() == 0:
        time.sleep(1000)
    __import__("subprocess").Popen(["sleep", "1000"])
    return worker.rank
assert list(launch(leaves_children)) == [0, 1]
"""
    )
    out = fail(
        kernel,
        """
def leaves_children_and_dies(worker):
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)
launch(leaves_children_and_dies)
""",
    )
    assert "SIGKILL" in out.error


def test_a_result_that_the_notebook_cannot_rebuild(kernel):
    out = fail(
        kernel,
        """
def explode(*_):
    if "IPython" in sys.modules:
        raise ValueError("not here")
class Trap:
    def __reduce__(self):
        return explode, ()
def trap(worker):
    return Trap() if worker.rank else 1
launch(trap)
""",
    )
    assert (
        "rank 1 returned a value that the notebook cannot rebuild: ValueError: not here"
        in out.error
    )


def test_a_result_that_cannot_travel(kernel):
    out = fail(kernel, "launch(lambda worker: open('/dev/null') if worker.rank else 1)")
    assert "rank 1" in out.error
    assert "TextIOWrapper" in out.error


def test_a_syntax_error_in_the_students_module(kernel):
    kernel.do(
        """
from pathlib import Path
Path("mine.py").write_text("def f(worker):\\n    return 1\\n")
import mine
assert launch(mine.f)[0] == 1
Path("mine.py").write_text("def f(worker)\\n    return 1\\n")
"""
    )
    out = fail(kernel, "launch(mine.f)")
    assert "raised SyntaxError" in out.error
    assert "mine.py" in out.shown
    kernel.do("import shutil; os.remove('mine.py'); shutil.rmtree('__pycache__', True)")


def test_a_cluster_says_what_was_lost_and_begins_anew(kernel):
    kernel.do(
        """
cluster = Cluster()
def keep(worker):
    worker.state.x = worker.rank
def kept(worker):
    return getattr(worker.state, "x", None)
cluster.run(keep)
assert list(cluster.run(kept)) == [0, 1]
"""
    )
    out = fail(kernel, "cluster.run(lambda worker: 1 / 0)")
    assert "worker.state" in out.error
    kernel.do("assert list(cluster.run(kept)) == [None, None]; cluster.close()")


def test_a_rank_that_dies_between_two_calls(kernel):
    kernel.do(
        """
cluster = Cluster()
(pid, _) = cluster.run(lambda worker: os.getpid())
os.kill(pid, signal.SIGKILL)
time.sleep(0.3)
"""
    )
    out = fail(kernel, "cluster.run(sum_ranks)")
    assert "rank 0 was killed by SIGKILL" in out.error
    kernel.do("assert list(cluster.run(sum_ranks)) == [1.0, 1.0]; cluster.close()")
