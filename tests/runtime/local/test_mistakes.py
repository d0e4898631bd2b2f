"""Beginners' mistakes with torch.distributed, each with the first line that a student reads."""

import linecache
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from tests.runtime.conftest import fail

AT = " at line 5 of cell.py"
CODE = """import torch, torch.distributed as dist

def f(worker):
    r, x = worker.rank, torch.ones(4)
    {}
"""
MISTAKES = [  # the line of code on two ranks, and the first line of the error: * is 0 or 1
    (
        "dist.all_reduce(torch.ones(4 + r))",
        "rank 0 sends 4 numbers, rank 1 sends 5, in all_reduce" + AT,
    ),
    (
        "dist.all_reduce(x if r else x.double())",
        "rank 0 sends float64, rank 1 sends float32, in all_reduce" + AT,
    ),
    (
        "dist.all_reduce(x, op=dist.ReduceOp.MAX if r else dist.ReduceOp.SUM)",
        "rank 0 asks for SUM, rank 1 asks for MAX, in all_reduce" + AT,
    ),
    (
        "dist.all_reduce(x.to('meta') if r else x)",
        "rank 0 sends float32, rank 1 sends float32 on another device, in all_reduce" + AT,
    ),
    (
        "dist.all_reduce(x) if r else dist.broadcast(x, src=0)",
        "rank 0 calls broadcast, rank 1 calls all_reduce" + AT,
    ),
    (
        "dist.broadcast(x, src=r)",
        "rank 0 names src=0, rank 1 names src=1, in broadcast" + AT,
    ),
    (
        "dist.broadcast(torch.ones(4 + r), src=0)",
        "rank 0 sends 4 numbers, rank 1 receives 5, in broadcast" + AT,
    ),
    (
        "dist.all_gather([torch.ones(4 + r) for _ in range(2)], torch.ones(4 + r))",
        "rank 0 sends 4 numbers, rank 1 sends 5, in all_gather" + AT,
    ),
    (
        "[dist.all_reduce(x) for _ in range(3 - r)]",
        "a hang: rank 0 waits in all_reduce for rank 1, which has returned",
    ),
    (
        "dist.barrier() if r else None",
        "a hang: rank 1 waits in barrier for rank 0, which has returned",
    ),
    (
        "(dist.recv(x, 1 - r), dist.send(x, 1 - r))",
        "a hang: rank 0 waits in recv for rank 1; rank 1 waits in recv for rank 0",
    ),
    (
        "None if r else dist.send(x, dst=1)",
        "a hang: rank 0 waits in send for rank 1, which has returned",
    ),
    (
        "dist.recv(x, 0) if r else dist.send(torch.ones(5), 1)",
        "rank 0 sends 5 numbers to rank 1, which receives 4" + AT,
    ),
    (
        "dist.recv(x.int(), 0) if r else dist.send(x, 1)",
        "rank 0 sends float32 to rank 1, which receives int32" + AT,
    ),
    (
        "dist.broadcast(x, src=2)",
        f"rank * names rank 2 in broadcast{AT}, and there is no rank 2",
    ),
    (
        "dist.send(x, dst=r + 1)",
        f"rank 1 names rank 2 in send{AT}, and there is no rank 2",
    ),
    (
        "dist.send(x, dst=1)",
        f"rank 1 names itself in send{AT}: no rank can send to itself, or receive from itself",
    ),
    (
        "g = dist.new_group([0]); r or dist.broadcast(x, src=1, group=g)",
        f"rank 0 names rank 1 in broadcast{AT}, and rank 1 is not a member of that group",
    ),
    (
        "dist.all_gather([x.clone() for _ in range(3)], x)",
        f"rank * gives 3 tensors to all_gather{AT}, and needs 2: one for each rank",
    ),
    (
        "dist.all_gather([torch.ones(5) for _ in range(2)], x)",
        f"rank * sends shape (4) in all_gather{AT}, and has room for shape (5) from each rank",
    ),
    (
        "dist.all_to_all([x.clone() for _ in range(3)], [x] * 3)",
        f"rank * gives 3 tensors to all_to_all{AT}, and needs 2: one for each rank",
    ),
    (
        "dist.scatter(x, None if r else [x] * 3, src=0)",
        f"rank 0 gives 3 tensors to scatter{AT}, and needs 2: one for each rank",
    ),
    (
        "dist.scatter(x, [x, x], src=0)",
        f"rank 1 gives a scatter_list to scatter{AT}, and only the source may: give None on the "
        "other ranks",
    ),
    (
        "dist.gather(x, dst=1)",
        f"rank 1 is the destination of gather{AT}, and gives no gather_list",
    ),
    (
        "dist.all_reduce(3.0)",
        f"rank * gives a float to all_reduce{AT}: make a tensor of it",
    ),
    (
        "dist.all_reduce(x, op='sum')",
        f"rank * gives op='sum' to all_reduce{AT}: write op=dist.ReduceOp.SUM, for example",
    ),
    (
        "dist.init_process_group('gloo')",
        f"rank * calls init_process_group{AT}, and the process group is there already: leave this "
        "line out",
    ),
    (
        "dist.all_reduce(x.to('cuda'))",
        f"rank * asks for a GPU{AT}, and it has none: make tensors with device=worker.device",
    ),
]
MOST_LINES = 12  # PyTorch's own errors have three times as many, and some are all in C++


def error_of(line: str, number: int = 0, **options) -> str:
    file, names = f"/x/{number}/cell.py", {"__name__": "__main__"}
    code = CODE.format(line)
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    exec(compile(code, file, "exec"), names)
    with pytest.raises(WorkerError) as caught:
        launch(names["f"], **options)
    return str(caught.value)


@pytest.fixture(scope="module")
def errors():
    launch(lambda worker: None)  # the server's start
    with ThreadPoolExecutor(3) as pool:
        tries = ((line, pool.submit(error_of, line, n)) for n, (line, _) in enumerate(MISTAKES))
        return dict(tries)


@pytest.mark.parametrize(("line", "said"), MISTAKES)
def test_a_mistake_is_named_in_a_sentence(errors, line, said):
    text = errors[line].result()
    first, *rest = text.splitlines()
    assert re.fullmatch(re.escape(said).replace(r"rank\ \*", "rank [01]"), first)
    assert line in "\n".join(rest)
    if first.startswith("a hang"):
        assert ", line 5 of /x/" in "".join(rest[:2])
    else:
        assert len(rest) < MOST_LINES
        assert "site-packages" not in text
        assert "helpers/runtime" not in text


def test_with_debug_the_sentence_is_the_same_and_pytorch_s_is_short():
    line, said = MISTAKES[0]
    assert error_of(line, debug=True).startswith(f"{said}\n")
    functional = "from torch.distributed._functional_collectives import all_reduce as a; "
    text = error_of(functional + "a(torch.ones(4 + r), 'sum', dist.group.WORLD)", debug=True)
    assert re.match(
        r"rank (0 calls ALLREDUCE of Float\[4\], rank 1 calls ALLREDUCE of Float\[5\]"
        r"|1 calls ALLREDUCE of Float\[5\], rank 0 calls ALLREDUCE of Float\[4\]) at line 5 ",
        text,
    )
    assert len(text) < 1_500


def test_four_ranks_are_named_by_their_values():
    text = error_of("dist.all_reduce(torch.ones(5 if r == 2 else 4))", workers=4)
    assert text.startswith("ranks 0, 1 and 3 send 4 numbers, rank 2 sends 5, in all_reduce at")


FINE = """
g = [dist.new_group([0, 1]), dist.new_group([2, 0]), dist.new_group([0, 1, 2])]
for n in range(1_300):  # more than the memory has room for
    dist.all_reduce(torch.ones(n % 7))
    if n % 3:
        dist.broadcast(torch.ones(2, 3), src=2)
for n in range(600):
    if r < 2:
        dist.all_reduce(torch.ones(3), group=g[0])
    if r != 1:
        dist.all_reduce(torch.ones(5), group=g[1])
    if r < 2:
        (dist.recv if r else dist.send)(torch.ones(n), 1 - r, tag=n % 3)
    dist.all_reduce(torch.ones(n), group=g[2])
"""


def test_what_belongs_together_is_not_refused():
    """Many calls and groups; a call refused and repeated; sizes that may differ; a rank ahead."""

    def fine(worker):
        import torch
        import torch.distributed as dist

        r = worker.rank
        exec(FINE, {"r": r, "dist": dist, "torch": torch})
        group = dist.new_group([0, 1, 2])
        if r == 0:
            with pytest.raises(RuntimeError):  # PyTorch refuses it on this rank alone
                dist.all_gather([torch.ones(4)], torch.ones(4), group=group)
        dist.barrier()  # by now rank 0 has taken its note back
        dist.all_reduce(torch.ones(3), group=group)
        dist.all_to_all_single(torch.ones(3 * (r + 1)), torch.ones(6), [r + 1] * 3, [1, 2, 3])
        if r == 0:
            for n in range(2_000):
                dist.send(torch.ones(1 + n % 5), 1)
        if r == 1:
            for n in range(2_000):
                dist.recv(torch.ones(1 + n % 5), 0 if n != 1_000 else None)
        path = f"/tmp/again-{os.getppid()}"
        dist.barrier()
        dist.destroy_process_group()
        store = dist.FileStore(path, 3)
        dist.init_process_group("gloo", store=store, rank=r, world_size=3)
        total = torch.ones(r + 1).sum()
        dist.all_reduce(total)
        if r == 0:
            os.unlink(path)
        return total.item()

    assert list(launch(fine, workers=3)) == [6.0] * 3


def test_in_a_notebook(kernel):
    cell = "def f(worker):\n    t = torch.ones(4 + worker.rank)\n    dist.all_reduce(t)\n"
    for options in ("", ", debug=True"):
        out = fail(kernel, cell + f"launch(f{options})")
        assert re.match(
            r"WorkerError: rank 0 sends 4 numbers, rank 1 sends 5, in all_reduce at line 3 of "
            r"Cell In\[\d+\]\n",
            out.error,
        )
        assert "gloo" not in out.stderr
        out = kernel.run("import builtins; builtins.input = lambda _: 'q'\n%debug")
        assert "dist.all_reduce(t)" in out.stdout  # at the student's line, and not in PyTorch
