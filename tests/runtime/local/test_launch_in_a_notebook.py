"""What a student sees: cells, live drawings, prints as they come, errors with the cell's line."""

import base64


def test_cells_edited_and_run_again(kernel):
    kernel.do("factor = 2\nclass Point:\n    def __init__(self, x):\n        self.x = x")
    kernel.do("def f(worker):\n    return Point(factor * worker.rank)")
    kernel.do("runs = launch(f)\nassert isinstance(runs[1], Point) and runs[1].x == 2")
    kernel.do("factor = 5")
    kernel.do("assert launch(f)[1].x == 5")
    kernel.do("def f(worker):\n    return 'edited'")
    kernel.do("assert launch(f)[1] == 'edited'")


def test_prints_arrive_while_the_call_runs(kernel):
    ident = kernel.start(
        """
def slow(worker):
    print("hello from", worker.rank)
    time.sleep(3)
launch(slow)
"""
    )
    early = kernel.result(ident, until="hello from")
    assert "[rank " in early.stdout
    out = kernel.result(ident)
    assert out.ended - early.arrivals[-1][0] > 1


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


def test_an_error_shows_the_cell_and_not_the_machinery(kernel):
    out = kernel.run("def step(worker):\n    x = [1, 2]\n    return x[7]\nlaunch(step)")
    assert out.error.startswith("WorkerError: rank")
    assert "return x[7]" in out.shown
    assert "Cell In[" in out.shown
    assert "cluster.py" not in out.shown
    assert "ipykernel_" not in out.shown


def test_what_cannot_travel_names_the_variable(kernel):
    out = kernel.run("lock = threading.Lock()\nlaunch(lambda worker: lock)")
    assert "`lock`, which `<lambda>` uses, is a _thread.lock" in out.error


def test_functions_of_a_cell_are_shown_by_inspect_on_the_rank(kernel):
    kernel.do(
        """
def f(worker):
    import inspect
    return inspect.getsource(f)
assert launch(f)[0].startswith("def f(worker):")
"""
    )
