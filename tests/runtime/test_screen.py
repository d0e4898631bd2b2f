"""Progress outside a notebook: plain lines. Inside: test_launch_in_a_notebook."""

import sys
from types import SimpleNamespace

import pytest

from helpers.runtime import screen
from helpers.runtime.screen import Screen, put


def test_a_curve_without_a_number(capsys):
    s = Screen("loss")
    for row in ({"lost": 1.0}, {"loss": None}, {"loss": "low"}):
        s.point({"rank": 0, **row})
    s.finish()
    assert "no rank called worker.log(loss=…)" in capsys.readouterr().out


def test_a_point_without_a_step_counts_by_itself():
    s = Screen("loss")
    for value in (3.0, 2.0):
        s.point({"rank": 0, "loss": value})
    assert s.curves[0] == ([0, 1], [3.0, 2.0])
    for step in (10, 20):
        s.point({"rank": 1, "loss": 1.0, "step": step})
    assert s.curves[1] == ([10, 20], [1.0, 1.0])


def test_a_line_comes_from_time_to_time_and_always_the_last(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    panel = screen.LinePanel()
    for done in range(50):  # 0.1 s apart
        panel.bars({("train", 0): (done, 50)}, last=False)
        panel.curve("loss", {0: ([done], [1.0])}, last=False)
        now[0] += 0.1
    panel.bars({("train", 0): (50, 50)}, last=True)
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.startswith("train")]
    assert len(shown) == 3 + 1  # at 0, 2 and 4 s, and the last
    assert shown[-1] == "train rank 0: 50/50"
    assert len(lines) == len(shown) + 3


def test_the_last_state_is_printed_although_a_line_was_held_back(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    s = Screen("loss")
    for done in (1, 2):  # the second is drawn too soon after the first for a line
        s.progress(0, "train", done, 2)
        s.point({"rank": 0, "loss": float(done)})
        s.draw()
        now[0] += 1.0
    s.finish()
    bars = ["train rank 0: 1/2", "train rank 0: 2/2"]
    curves = ["loss: rank 0 1 (step 0)", "loss: rank 0 2 (step 1)"]
    assert capsys.readouterr().out.splitlines() == [bars[0], curves[0], bars[1], curves[1]]


def test_drawing_takes_a_share_of_the_time_at_most(monkeypatch):
    drawn = []

    class Slow:
        def bars(self, bars, last):
            drawn.append(last)
            now[0] += 1.0

    now = [0.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    s = Screen()
    s.panel = Slow()
    for _ in range(100):
        s.progress(0, "", 1, 2)
        s.draw()
        now[0] += 0.1
    assert 2 <= len(drawn) <= 4  # each draw takes 1 s, so there is one in 5 s or more


@pytest.mark.parametrize(
    ("shell", "pictures"),
    [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=1), True)],
)
def test_only_a_kernel_shows_pictures(monkeypatch, shell, pictures):
    """IPython at a prompt does not."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert screen.in_jupyter() == pictures
    kind = screen.JupyterPanel if pictures else screen.LinePanel
    assert type(Screen().panel) is kind


def test_only_what_is_new_is_drawn_and_each_last_state():
    drawn = []
    s = Screen("loss")
    s.panel = SimpleNamespace(
        bars=lambda bars, last: drawn.append(("bars", dict(bars), last)),
        curve=lambda name, curves, last: drawn.append((name, dict(curves), last)),
    )
    s.draw()
    s.finish()
    assert drawn == []
    s.point({"rank": 2, "loss": 0.5})
    s.draw()
    curves = {2: ([0], [0.5])}
    s.progress(1, "train", 3, None)
    s.draw()  # too soon
    s.finish()
    s.finish()
    assert drawn == [("loss", curves, False), ("bars", {("train", 1): (3, None)}, True)]


def test_ranks_of_a_curve_are_named_in_order(capsys):
    screen.LinePanel().curve("loss", {10: ([0, 5], [1.0, 0.123456]), 2: ([7], [3.0])}, True)
    assert capsys.readouterr().out == "loss: rank 2 3 (step 7), rank 10 0.1235 (step 5)\n"


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", b"\\u2026 \\xd7"), ("utf-8", "… ×".encode())]
)
def test_put(tmp_path, encoding, expected):
    with open(tmp_path / "out", "w", encoding=encoding) as stream:
        put("… ×", stream)
        assert (tmp_path / "out").read_bytes() == expected
