"""The line that shows the progress of a fit."""

import pytest

from helpers.scaling import progress


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "DRAW_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
def test_one_line_is_written_over_and_gone_at_the_end(capsys):
    with progress.shown("starts", 4500, show=True) as tick:
        tick(4500)
        tick(99)  # the rest of the longer line must go
    written = capsys.readouterr().err.split("\r")
    assert [line.strip() for line in written] == [
        "",
        "4,500 of 4,500 starts",
        "99 of 4,500 starts",
        "",
        "",
    ]
    assert len(written[2]) == len("4,500 of 4,500 starts")
    assert len(written[-2]) == len("99 of 4,500 starts")  # blanks over all of it


def test_it_is_drawn_a_few_times_a_second(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.shown("starts", 9, show=True) as tick:
        for done in range(9):
            now[0] = 0.4 * progress.DRAW_SECONDS * done
            tick(done)
    lines = [line for line in capsys.readouterr().err.split("\r") if line.strip()]
    assert lines == ["3 of 9 starts", "6 of 9 starts"]
    with progress.shown("starts", 9, show=True) as tick:
        tick(9)
    assert capsys.readouterr().err == ""  # a short fit shows nothing, so nothing is erased


@pytest.mark.usefixtures("at_once")
def test_it_is_gone_after_an_error_too(capsys):
    def fails():
        with progress.shown("starts", 9, show=True) as tick:
            tick(1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert capsys.readouterr().err.endswith(" \r")


@pytest.mark.usefixtures("at_once")
def test_silent_where_nobody_looks(capsys):
    with progress.shown("starts", 9, show=False) as tick:
        tick(5)
    assert capsys.readouterr().err == ""
