"""`%debug` after a failure on ranks, in a real kernel: a person types, ranks answer."""

import time

import pytest

from tests.runtime.conftest import gone

FAILS = """
def fails(worker, scale):
    weights = torch.full((3, 2), scale + worker.rank)
    if worker.rank == 1:
        reason = "odd rank"
        broken(weights, n=7)
    dist.barrier()

def broken(inner, n):
    raise ValueError("no good")

launch(fails, workers=3, scale=4.0)
"""


def talk(kernel, lines, code="%debug"):
    """Run `code`, and answer its prompts with `lines`. Returns what was shown, and the prompts."""
    ident, prompts = kernel.start(code), []
    for line in lines:
        prompts.append(kernel.client.get_stdin_msg(timeout=20)["content"]["prompt"])
        kernel.client.input(line)
    return kernel.result(ident), prompts


@pytest.fixture
def failed(kernel):
    out = kernel.run(FAILS)
    assert "rank 1 raised ValueError: no good" in out.error
    assert "%debug enters rank 1 where it failed; the ranks are kept" in out.shown
    return kernel


def test_locals_tensors_up_and_down(failed):
    lines = [
        "n_is = n",
        "p n",
        "up",
        "reason",
        "weights",
        "p weights.sum()",
        "down",
        "p inner is x",
    ]
    out, prompts = talk(failed, [*lines, "q"])
    assert set(prompts) == {"rank 1 ▸ "}
    said = out.stdout
    assert "raise ValueError" in said
    assert "Cell In[" in said
    assert "\n7\n" in said
    assert "-> broken(weights, n=7)" in said
    assert "'odd rank'" in said
    assert "shape (3, 2), float32, cpu\ntensor([[5., 5.]," in said
    assert "shape (), float32, cpu\ntensor(30.)" in said
    assert "NameError: name 'x' is not defined" in said
    assert "helpers/runtime" not in said
    assert out.error is None


def test_another_rank_waits_in_its_collective(failed):
    out, prompts = talk(failed, ["rank 2", "p weights[0, 0].item()", "down", "w", "rank 7", "q"])
    assert prompts == ["rank 1 ▸ "] + 5 * ["rank 2 ▸ "]
    assert "-> dist.barrier()" in out.stdout
    assert "\n6.0\n" in out.stdout
    assert "distributed_c10d.py" in out.stdout
    assert "There are ranks 0 to 2" in out.stdout


def test_the_next_call_ends_them(failed):
    assert len(failed.children()) > 3
    failed.do("assert list(launch(sum_ranks)) == [1.0, 1.0]")
    assert gone(lambda: failed.children()[1:], 5)
    out = failed.do("%debug")
    assert "are gone" in out.stdout
    assert "Run the cell again" in out.stdout


def test_a_hang_can_be_entered(kernel):
    out = kernel.run(
        """
def early(worker):
    step = 10 + worker.rank
    if worker.rank == 0:
        return
    dist.barrier()
launch(early, workers=2)
"""
    )
    assert "rank 1 waits in barrier for rank 0, which has returned" in out.error
    assert "%debug enters rank 1 where it waits" in out.shown
    out, _ = talk(kernel, ["p step", "rank 0", "p 1", "q"])
    assert "\n11\n" in out.stdout
    assert out.stdout.count("not in your function") == 2


def test_a_rank_that_dies_under_the_debugger(failed):
    out, _ = talk(failed, ["import os; os._exit(3)"])
    assert "Rank 1 has ended" in out.stdout
    out, _ = talk(failed, ["w", "q"], "sys.last_value.debug(0)")
    # Its peer's end wakes it from the barrier, sooner or later.
    assert "-> dist.barrier()" in out.stdout or "not in your function" in out.stdout
    assert "Rank 1 has ended" in talk(failed, ["rank 1"], "sys.last_value.debug(0)")[0].stdout


def test_interrupted_while_a_rank_answers(failed):
    ident = failed.start("%debug")
    failed.client.get_stdin_msg(timeout=20)
    failed.client.input("__import__('time').sleep(1000)")
    time.sleep(1)
    failed.interrupt()
    assert failed.result(ident).error is None
    assert gone(lambda: failed.children()[1:], 5)
    assert "are gone" in failed.do("%debug").stdout


def test_an_ordinary_error_is_still_ipythons(failed):
    failed.run("mine = 5\ndef f(local):\n    1 / 0\nf(local=41)")
    out, prompts = talk(failed, ["p local + 1", "q"])
    assert prompts[0].startswith("ipdb>")
    assert "42" in out.stdout


def test_an_error_that_was_caught_keeps_nothing(kernel):
    kernel.do(
        """
try:
    launch(lambda worker: 1 / 0)
except WorkerError as error:
    text = str(error)
assert "%debug" not in text
"""
    )
    assert gone(lambda: kernel.children()[1:], 5)
