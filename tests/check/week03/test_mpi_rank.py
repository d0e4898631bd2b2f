"""What one MPI rank does, with doubles of MPI, of the clock and of the watchdogs."""

import json
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from helpers.check.week03 import mpi_rank
from helpers.data.batch import IGNORED
from helpers.models.gpt import build

PIXELS = torch.rand(30, 65, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
PIXELS[:, 64] = torch.arange(30) % 10
LOG: list = []  # what happened, in order


class Aborted(BaseException):
    pass


class Communicator:
    def __init__(self, rank, name="everyone"):
        self.rank, self.name = rank, name

    def Get_rank(self):
        return self.rank

    def Split(self, color, key):
        LOG.append(("split", color, key))
        return Communicator(self.rank, f"group {color}")

    def Ibarrier(self):
        assert self.name == "everyone"
        answers = iter([False, False, True])
        return SimpleNamespace(Test=lambda: (LOG.append("barrier"), next(answers))[1])

    def Abort(self, code):
        LOG.append((f"abort {self.name}", code))
        raise Aborted


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A private folder with the digits; MPI's double says that this is rank 1."""
    LOG.clear()
    tmp_path.chmod(0o700)
    (tmp_path / "digits").write_bytes(PIXELS.numpy().tobytes())
    mpi = SimpleNamespace(COMM_WORLD=Communicator(1))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))

    def later(seconds, file):
        LOG.append(("watch", seconds, file.name, file.closed))

    watchdog = SimpleNamespace(
        dump_traceback_later=later, cancel_dump_traceback_later=lambda: LOG.append("unwatched")
    )
    monkeypatch.setattr(mpi_rank, "faulthandler", watchdog)
    monkeypatch.setattr(mpi_rank, "time", SimpleNamespace(sleep=lambda s: LOG.append(f"sleep {s}")))
    alarm = SimpleNamespace(alarm=lambda seconds: LOG.append(f"alarm {seconds}"))
    monkeypatch.setattr(mpi_rank, "signal", alarm)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: LOG.append(f"threads {n}"))
    return tmp_path


def give(folder, fn):
    (folder / "function").write_bytes(pickle.dumps(fn))


def solve(world, model, batches, loss_sum, rate):
    from mpi4py import MPI

    assert MPI.COMM_WORLD is world
    LOG.append(("solve", world.name, rate))
    losses = []
    for rows in batches:
        loss, _ = loss_sum(model, rows[1:])
        losses.append(loss.item())
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
    return losses


def fails(world, model, batches, loss_sum, rate):
    if "unwatched" in LOG:
        raise ZeroDivisionError("no rows")
    return []


def test_a_rank_serves_the_cases_that_it_belongs_to(folder):
    give(folder, solve)
    mpi_rank.main(folder, 2.5)
    watch = ("watch", 2.5, str(folder / "stack-1"), False)
    waits = ["barrier", "sleep 0.005", "barrier", "sleep 0.005", "barrier"]
    one = [("split", 1, 1), watch, ("solve", "group 1", 0.25), "unwatched", *waits]
    assert LOG[:3] == ["alarm 80", "threads 1", ("split", 0, 1)]
    assert LOG[3:] == [*waits, *one * 4]
    reports = sorted(file.name for file in folder.glob("report-*"))
    assert reports == [f"report-{case}-1" for case in (1, 2, 3, 4)]
    assert (folder / "stack-1").read_text() == ""
    found = [json.loads((folder / name).read_text()) for name in reports]
    for one, work in zip(found, ("digits", "digits", "gpt", "gpt"), strict=True):
        model, loss_of = mpi_rank.model_of(work, 1), mpi_rank.loss_of(work, PIXELS)
        assert len(one["calls"]) == len(one["losses"]) == len(mpi_rank.rows_of(work))
        pairs = zip(one["calls"], one["losses"], mpi_rank.rows_of(work), strict=True)
        for step, (call, loss, rows) in enumerate(pairs):
            assert call["rows"] == rows[1:].tolist()
            assert call["state"][0] == pytest.approx(mpi_rank.flat(model)[0].item(), abs=1e-12)
            assert loss == pytest.approx(loss_of(model, rows[1:])[0].item(), rel=1e-12), step
            with torch.no_grad():
                next(model.parameters()).add_(1.0)
        assert one["state"] == pytest.approx(mpi_rank.flat(model).tolist(), abs=1e-12)


def test_an_error_is_written_before_all_ranks_end(folder):
    give(folder, fails)
    with pytest.raises(Aborted):
        mpi_rank.main(folder, 2.5)
    assert LOG[-4:] == [LOG[-4], "unwatched", "sleep 0.2", ("abort everyone", 1)]
    assert LOG[-4][0] == "watch"
    assert json.loads((folder / "report-1-1").read_text())["losses"] == []
    report = json.loads((folder / "report-2-1").read_text())
    assert report["error"] == "ZeroDivisionError: no rows"
    assert report["not written"] is False
    assert report["frames"][-1][2] == "fails"
    assert not (folder / "report-3-1").exists()


def test_a_rank_reads_only_its_own_user_s_folder(folder):
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone: run the check again"):
        mpi_rank.main(folder, 1.0)
    assert LOG == []


def test_a_report_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "report-1-2"
    mpi_rank.write(file, "first")
    with monkeypatch.context() as patch:
        patch.setattr(mpi_rank.os, "replace", lambda source, target: None)
        mpi_rank.write(file, "second")
        assert file.read_text() == "first"
    mpi_rank.write(file, "third")
    assert [one.name for one in tmp_path.iterdir()] == ["report-1-2"]
    assert file.read_text() == "third"


def test_what_an_error_leaves():
    def inner():
        raise NotImplementedError("later")

    try:
        inner()
    except NotImplementedError as error:
        found = mpi_rank.failure(error)
    assert found["error"] == "NotImplementedError: later"
    assert found["not written"] is True
    assert [(file, name) for file, _, name in found["frames"]] == [
        (__file__, "test_what_an_error_leaves"), (__file__, "inner")
    ]  # fmt: skip
    assert found["frames"][1][1] < found["frames"][0][1]  # the line of the raise, then of the call


def test_what_was_returned():
    assert mpi_rank.plain([1.5, 2, torch.ones(1), None]) == [1.5, 2, "Tensor", "NoneType"]
    assert mpi_rank.plain((0.5,)) == [0.5]
    assert mpi_rank.plain(torch.ones(2)) == "Tensor"
    assert mpi_rank.plain(None) == "NoneType"


def test_the_cases():
    assert mpi_rank.CASES == (("digits", 1), ("digits", 2), ("digits", 3), ("gpt", 2), ("gpt", 3))
    assert max(ranks for _, ranks in mpi_rank.CASES) == mpi_rank.RANKS
    assert [len(rows) for rows in mpi_rank.rows_of("digits")] == [11, 7, 2, 10]
    assert [len(rows) for rows in mpi_rank.rows_of("gpt")] == [5, 7, 5]
    for work, rows in (("digits", 30), ("gpt", 17)):
        every = torch.cat(mpi_rank.rows_of(work)).tolist()
        assert sorted(every) == list(range(rows)) != every


def test_each_rank_s_own_first_parameters():
    for work in ("digits", "gpt"):
        torch.manual_seed(3)
        before = torch.random.get_rng_state()
        models = [mpi_rank.flat(mpi_rank.model_of(work, seed)) for seed in (0, 1, 2, 1)]
        assert torch.equal(models[1], models[3])
        assert not torch.equal(models[0], models[1])
        assert not torch.equal(models[2], models[1])
        assert torch.equal(torch.random.get_rng_state(), before)
        assert {model.dtype for model in models} == {torch.float64}
    right = build(mpi_rank.CONFIG, seed=2, dtype=torch.float64)
    assert torch.equal(mpi_rank.flat(mpi_rank.model_of("gpt", 2)), mpi_rank.flat(right))
    layers = mpi_rank.model_of("digits", 0)
    kept = mpi_rank.flat(layers)
    with torch.no_grad():
        layers[0].weight.zero_()
    assert kept.abs().min() > 0  # a copy
    assert len(kept) == 64 * 8 + 8 + 8 * 10 + 10


def test_the_loss_of_some_digits():
    model, rows = mpi_rank.model_of("digits", 0), torch.tensor([4, 17, 9])
    loss, count = mpi_rank.loss_of("digits", PIXELS)(model, rows)
    each = [cross_entropy(model(PIXELS[r, :64]), torch.tensor(r % 10)) for r in (4, 17, 9)]
    assert loss.item() == pytest.approx(sum(each).item(), rel=1e-12)
    assert count == 3
    loss, count = mpi_rank.loss_of("digits", PIXELS)(model, rows[:0])
    assert (loss.item(), count) == (0, 0)


def test_the_loss_of_some_text(monkeypatch):
    drawn = []
    draw = mpi_rank.random_batch
    monkeypatch.setattr(
        mpi_rank, "random_batch", lambda *a, **k: drawn.append(draw(*a, **k)) or drawn[-1]
    )
    model, rows = mpi_rank.model_of("gpt", 0), torch.tensor([16, 0, 5])
    loss, count = mpi_rank.loss_of("gpt", PIXELS)(model, rows)
    (text,) = drawn
    assert text.tokens.shape == (17, 6)
    targets = text.targets[rows]
    logits = model(text.tokens[rows])
    right = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert loss.item() == pytest.approx(right.item(), rel=1e-12)
    assert count == (targets != IGNORED).sum() < targets.numel()
