"""What ended the MPI ranks, from their reports: doubles of the folder that they write into."""

import json
from types import SimpleNamespace

import pytest
import torch

from helpers import check
from helpers.check.oracle import HANG_HINT, NotRight
from helpers.check.week03 import by_mpi, mpi_rank, mpiexec
from helpers.data.digits import digits


class Folder:
    def __init__(self, stacks=None, printed="", reports=None):
        self.found, self.text, self.reports = stacks or {}, printed, reports or {}

    def stacks(self):
        return self.found

    def printed(self):
        return self.text

    def report(self, case, rank):
        return self.reports.get((case, rank))


def raised(error, *frames, not_written=False):
    return {"error": error, "not written": not_written, "frames": frames}


FINE = {"losses": []}
OWN = ("/tmp/notebook.py", 7, "train")
PROGRAM = ("/course/helpers/check/week03/mpi_rank.py", 90, "train")


def test_ranks_that_all_reported_broke_nothing():
    assert by_mpi.what_broke([FINE, FINE, FINE], Folder({1: "stack"}, "words")) is None


def test_the_error_of_the_last_rank_and_its_lines():
    found = by_mpi.what_broke([FINE, FINE, raised("KeyError: 'x'", PROGRAM, OWN)], Folder())
    lines = found.finding.splitlines()
    assert lines[0] == "rank 2 raised KeyError: 'x'"
    assert lines[1:] == ['  File "/tmp/notebook.py", line 7, in train']
    assert found.hint == ""


@pytest.mark.parametrize("words", ["MPI_ERR_TRUNCATE", "MPI_Abort was called"])
def test_an_error_of_its_own_comes_before_those_that_it_caused(words):
    late, own = raised(f"Exception: {words}"), raised("leaf Variable was used")
    found = by_mpi.what_broke([late, FINE, own], Folder())
    assert found.finding == "rank 2 raised leaf Variable was used"
    assert "torch.no_grad()" in found.hint
    found = by_mpi.what_broke([None, late, late], Folder())
    assert found.finding.startswith("rank 1 raised Exception")
    stub = by_mpi.what_broke([own, FINE, raised("NotImplementedError", not_written=True)], Folder())
    assert (stub.status, stub.exercise) == ("not written yet", "train_by_mpi")


def test_a_hang_shows_the_stacks_and_who_had_returned(monkeypatch):
    monkeypatch.setattr(by_mpi, "doing", lambda stack: f"in {stack}")
    monkeypatch.setattr(by_mpi, "format_stack", lambda stack: f"  line of {stack}")
    found = by_mpi.what_broke([None, FINE, None], Folder({0: "first", 2: "third"}))
    assert found.finding.splitlines() == [
        "no progress for 15 s: a hang", "rank 0 was in first", "  line of first",
        "rank 2 was in third", "  line of third", "rank 1 had returned",
    ]  # fmt: skip
    assert found.hint == HANG_HINT


def test_a_rank_that_ended_without_a_word():
    printed = "\n".join(f"line {k}" for k in range(20)) + "\n\n"
    found = by_mpi.what_broke([FINE, None, None], Folder(printed=printed))
    assert found.finding.splitlines() == [
        "rank 1 ended without a report", *(f"line {k}" for k in range(12, 20))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("Can't call numpy() on Tensor that requires grad", "parameter.detach().numpy()"),
        ("a Tensor that requires grad", "parameter.detach().numpy()"),
        ("Exception: MPI_ERR_TRUNCATE: message", "Is each buffer as large on every rank"),
        ("message truncated", "Is each buffer as large on every rank"),
        ("a leaf Variable is used", "inside `with torch.no_grad():`"),
        ("in an in-place operation", "inside `with torch.no_grad():`"),
        ("unsupported operand 'NoneType'", "before the first backward"),
        ("KeyError: 'x'", ""),
    ],
)
def test_hints_for_errors(error, hint):
    assert hint in by_mpi.hint_error(error)
    assert bool(by_mpi.hint_error(error)) == bool(hint)


def asked(monkeypatch, result):
    """The verdict where the ranks' run has this result, and what was asked for."""
    given = []

    def run(*arguments):
        given.append(arguments)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(by_mpi, "run_on_mpi_ranks", run)
    return check.train_by_mpi(solve), given


def solve(world, model, batches, loss_sum, rate):
    return []


def test_the_ranks_get_the_digits_and_a_quiet_time(monkeypatch):
    verdict, [(fn, ranks, inputs, quiet)] = asked(monkeypatch, Folder())
    assert verdict.finding.startswith("digits, 1 rank: rank 0 ended without a report")
    assert (fn, ranks, quiet) == (solve, 3, 15.0)
    pixels = torch.frombuffer(bytearray(inputs["digits"]), dtype=torch.float64).view(30, 65)
    rows = [digits()[k] for k in range(30)]
    assert pixels[:, 64].tolist() == [row["label"] for row in rows]
    for mine, row in zip(pixels, rows, strict=True):
        image = torch.tensor(row["image"], dtype=torch.float32)
        assert torch.equal(mine[:64].view(8, 8), image.double())


def test_a_function_that_cannot_travel_and_a_machine_without_mpi(monkeypatch):
    verdict, _ = asked(monkeypatch, TypeError("cannot pickle a lock"))
    assert verdict.finding == "the function cannot travel to the ranks: cannot pickle a lock"
    verdict, _ = asked(monkeypatch, mpiexec.NoMPI("there is no mpiexec"))
    assert (verdict.finding, verdict.hint) == ("there is no mpiexec", "Your function was not run.")


def test_each_case_is_judged_with_a_process_of_its_own(monkeypatch):
    reports = {
        (number, rank): json.dumps({"rank": rank, "case": number})
        for number, (_, ranks) in enumerate(mpi_rank.CASES) for rank in range(ranks)
    }  # fmt: skip
    judged = []
    pixels = SimpleNamespace(numpy=lambda: SimpleNamespace(tobytes=lambda: b""))
    monkeypatch.setattr(by_mpi, "digits_with_labels", lambda: pixels)
    monkeypatch.setattr(by_mpi, "Twin", lambda *given: given)
    monkeypatch.setattr(by_mpi, "judge", lambda *given: judged.append(given))
    verdict, _ = asked(monkeypatch, Folder(reports=reports))
    assert verdict
    assert judged == [
        ([{"rank": rank, "case": number} for rank in range(ranks)], (work, pixels))
        for number, (work, ranks) in enumerate(mpi_rank.CASES)
    ]

    def wrong_in_the_last(found, twin):
        if (twin[0], len(found)) == ("gpt", 3):
            raise NotRight("the finding", "the hint")

    monkeypatch.setattr(by_mpi, "judge", wrong_in_the_last)
    verdict, _ = asked(monkeypatch, Folder(reports=reports))
    assert (verdict.finding, verdict.hint) == ("gpt, 3 ranks: the finding", "the hint")
    del reports[3, 1]
    verdict, _ = asked(monkeypatch, Folder(reports=reports))
    assert verdict.finding == "gpt, 2 ranks: rank 1 ended without a report"


def test_a_stub_names_nothing_but_its_error():
    def stub(world, *given):
        raise NotImplementedError

    def half(world, *given):
        if world.rank:
            raise NotImplementedError

    assert by_mpi.only_raises(stub)
    assert not by_mpi.only_raises(half)
    assert not by_mpi.only_raises(solve)
    assert not by_mpi.only_raises(print)
