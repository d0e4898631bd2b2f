"""The line that shows the progress of a fit."""

import pytest

from helpers.scaling import progress


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "DRAW_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
def test_one_line_is_written_over_and_gone_at_the_end(capsys):
    with progress.shown("starts", 4500, show=True) as tick:
        tick(1000)
        tick(4500)
    written = capsys.readouterr().err.split("\r")
    assert [line.strip() for line in written] == [
        "",
        "1,000 of 4,500 starts",
        "4,500 of 4,500 starts",
        "",
        "",
    ]
    assert len(written[-2]) == len("4,500 of 4,500 starts")  # blanks over all of it


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
