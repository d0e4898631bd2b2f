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
        ("sys.exit('enough')", "rank 1 called sys.exit(enough)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by SIGKILL: out of memory?"),
        ("os.abort()", "rank 1 was killed by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "rank 1 was killed by SIGSEGV"),
        ("sys.stdout.close(); raise OSError('mine')", "rank 1 raised OSError: mine"),
        ("os.close(1); os.close(2); raise OSError('mine')", "rank 1 raised OSError: mine"),
        ("dist.destroy_process_group(); dist.barrier()", "rank 1 raised ValueError"),
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


@pytest.mark.parametrize("call", ["killer(None)", "cluster.run(killer)"])
def test_a_rank_that_dies_after_its_answer(kernel, call):
    """Between two calls; and before another rank has answered."""
    kernel.do(
        f"""
cluster = Cluster()
(pid, _) = cluster.run(lambda worker: os.getpid())
def killer(worker):
    if os.getpid() != pid:
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
{call}
"""
    )
    out = fail(kernel, "cluster.run(sum_ranks)")
    assert "rank 0 was killed by SIGKILL" in out.error
    kernel.do("assert list(cluster.run(sum_ranks)) == [1.0, 1.0]; cluster.close()")
