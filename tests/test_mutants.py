"""`make mutants`: what counts as a mistake, and the list of mistakes that change nothing.

Cosmic Ray, which makes most mistakes, is installed by `make mutants` only, so it does not run here.
"""

import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest

from tests.conftest import ci

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutants():
    return ci("mutants")


SOURCE = """
def step(optimizer, count: int | None = None):
    total = 0
    total += 1
    if count is not None:
        optimizer.step()
    optimizer.zero_grad(
        set_to_none=True
    )
    return total
"""


def test_each_simple_statement_is_left_out_once(mutants):
    found = mutants.without_a_statement(SOURCE)
    changed = [mutants.compared("a.py", SOURCE, one) for one in found]
    assert [(one.line, one.before, one.after) for one in changed] == [
        (4, "total += 1", "pass"),
        (6, "optimizer.step()", "pass"),
    ]
    assert "        pass\n    optimizer.zero_grad(" in changed[1].source


def test_what_is_no_mistake(mutants):
    def made(before, after):
        return mutants.compared("a.py", SOURCE, SOURCE.replace(before, after))

    assert made("total = 0", "total = 1").after == "total = 1"
    assert made("total = 0", "total = ") is None  # no Python
    assert made("int | None", "int & None") is None  # an annotation
    assert made("total = 0\n", "") is None  # another number of lines
    assert mutants.compared("a.py", SOURCE, None) is None
    assert made("total", "sum") is None  # several lines


def test_the_listed_mistakes_have_reasons_and_lines(mutants):
    listed = tomllib.loads((ROOT / ".ci" / "equivalent.toml").read_text("utf-8")).get("mutant", [])
    for one in listed:
        lines = [line.strip() for line in (ROOT / one["path"]).read_text("utf-8").split("\n")]
        assert one["before"] in lines, one
        assert one["after"] != one["before"]
        assert len(one["reason"]) > 20
    assert len(mutants.equivalent()) == len(listed)


def test_a_file_lists_what_changes_nothing(mutants, tmp_path):
    file = tmp_path / "equivalent.toml"
    assert mutants.equivalent(file) == set()
    rows = [f'[[mutant]]\npath = "a.py"\nbefore = "x"\nafter = "{y}"\n' for y in "yz"]
    file.write_text("".join(rows))
    assert mutants.equivalent(file) == {("a.py", "x", "y"), ("a.py", "x", "z")}


def test_some_are_chosen_at_random_and_stay_in_the_order_of_lines(mutants, monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("text")
    every = [mutants.Mutant("a.py", 30 - k // 2, "x", f"y{k}", "") for k in range(40)]
    monkeypatch.setattr(mutants, "mutants", lambda path, source: every)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    known = {("a.py", "x", "y0")}
    found = mutants.chosen("a.py", 0, 0, known)
    assert [m.line for m in found] == sorted(m.line for m in every[1:])
    assert mutants.chosen("a.py", 39, 0, known) == found
    some, same, others = (mutants.chosen("a.py", 7, seed, known) for seed in (1, 1, 2))
    assert some == same != others
    for chosen in (some, others):
        assert set(chosen) < set(found)
        assert [m.line for m in chosen] == sorted(m.line for m in chosen)


def test_a_copy_has_what_git_knows_or_would_add(mutants, tmp_path):
    root, to = tmp_path / "root", tmp_path / "to"
    for name in ("a/known.py", "gone.py", "a/new.py", "a/b.log", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("*.log\n" if name == ".gitignore" else name)
    for line in (["init", "-q"], ["add", "a/known.py", "gone.py"]):
        subprocess.run(["git", *line], cwd=root, check=True)
    (root / "gone.py").unlink()
    mutants.copy_of(root, to)
    copied = {p.relative_to(to).as_posix(): p.read_text() for p in to.rglob("*") if p.is_file()}
    known = {name: name for name in ("a/known.py", "a/new.py")}
    assert copied == {**known, ".gitignore": "*.log\n"}


def test_a_package_without_tests_is_named(mutants, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    assert mutants.judge("helpers/a/b.py", 0, 0, set(), tmp_path) == []
    assert capsys.readouterr().out == "helpers/a/b.py: its package has no tests\n"


def test_all_tests_of_the_package_judge_and_the_nearest_come_first(mutants, tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for name in ("a/deep/test_b.py", "a/deep/test_c.py", "a/test_d.py", "e/test_b.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    others = ["tests/a/deep/test_c.py", "tests/a/test_d.py"]
    assert mutants.judges("helpers/a/deep/b.py") == [["tests/a/deep/test_b.py"], others]


def test_files_by_name_or_by_commit(mutants, monkeypatch):
    assert mutants.files(["helpers/comm/mesh.py"]) == ["helpers/comm/mesh.py"]
    seen = []
    monkeypatch.setattr(
        mutants.quick,
        "changed",
        lambda since, root: (
            seen.append(since)
            or [
                "README.md",
                "helpers/comm/mesh.py",
                "helpers/gone.py",
                "tests/test_mutants.py",
                "helpers/scaling/sweep.csv",
            ]
        ),
    )
    assert mutants.files([]) == mutants.files(["main"]) == ["helpers/comm/mesh.py"]
    assert seen == ["HEAD", "main"]
    with pytest.raises(SystemExit, match="one commit"):
        mutants.files(["a", "b"])


def test_a_mistake_in_a_copy_is_found_and_another_survives(mutants, tmp_path, monkeypatch, capsys):
    """A small project: one test sees the sign, another of the package a value, none the limit."""
    root, path = tmp_path / "root", "helpers/a/clip.py"
    (root / "helpers" / "a").mkdir(parents=True)
    (root / "tests" / "a").mkdir(parents=True)
    source = "def clip(x):\n    if x > 9:\n        return 9\n    return -x\n"
    (root / path).write_text(source)
    (root / "helpers" / "__init__.py").touch()  # a namespace would lose against the course's own
    (root / "helpers" / "a" / "__init__.py").write_text("from .clip import clip as cut\n")
    test = "from helpers.a.clip import clip\n\ndef test():\n    assert clip(1) == -1\n"
    (root / "tests" / "a" / "test_clip.py").write_text(test)
    test = "from helpers.a import cut\n\ndef test():\n    assert cut(12) == 9\n"
    (root / "tests" / "a" / "test_whole.py").write_text(test)
    for line in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *line], cwd=root, check=True)
    monkeypatch.setattr(mutants, "ROOT", root)
    monkeypatch.setattr(mutants, "PYTHON", Path(sys.executable))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # ten times as fast, six times

    hangs = []

    def made(path, source):
        changes = [
            *(hangs or [("return -x", "return x"), ("9\n    r", "8\n    r")]),
            ("x > 9", "x >= 9"),
        ]
        return [mutants.compared(path, source, source.replace(*change)) for change in changes]

    monkeypatch.setattr(mutants, "mutants", made)
    tree = tmp_path / "tree"
    mutants.copy_of(root, tree)
    survived = mutants.judge(path, 0, 0, set(), tree)
    assert [m.after for m in survived] == ["if x >= 9:"]
    assert "2 of 3 found" in capsys.readouterr().out
    assert (tree / path).read_text() == source  # the copy is mended again
    # one that is known to change nothing, and one that makes the test hang: found, too
    known = {(path, "if x > 9:", "if x >= 9:")}
    hangs[:] = [("return -x", "return [-x, __import__('time').sleep(30)][0]")]
    monkeypatch.setattr(mutants, "PATIENCE", 0)
    monkeypatch.setattr(mutants, "START", 0.5)
    assert mutants.judge(path, 0, 0, known, tree) == []
    assert not list(tree.rglob("*.pyc"))  # one of the same second and size would hide a mistake
    (tree / "tests" / "a" / "test_whole.py").write_text("def test():\n    assert False\n")
    with pytest.raises(SystemExit, match="fails without any mistake"):
        mutants.judge(path, 0, 0, known, tree)


def test_tests_that_hang_are_ended_with_all_that_they_started(mutants, tmp_path, monkeypatch):
    program, sleep = tmp_path / "python", ["sleep", "31.41"]
    program.write_text("#!/bin/sh\nsleep 31.41 &\nsleep 31.41\n")
    program.chmod(0o755)
    monkeypatch.setattr(mutants, "PYTHON", program)
    passed, seconds = mutants.run([], tmp_path, timeout=0.3)
    assert not passed
    assert seconds < 20
    end = time.monotonic() + 10  # a killed process is there until the kernel has cleaned up
    while any(p.info["cmdline"] == sleep for p in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("survive", [0, 1])
def test_a_survivor_is_an_error_and_no_change_is_nothing_to_judge(
    mutants, monkeypatch, capsys, survive
):
    asked = []

    def judge(path, most, seed, known, tree):
        asked.append((path, most, seed))
        return survive * [mutants.Mutant(path, 3, "a > b", "a >= b", "")]

    monkeypatch.setattr(mutants, "judge", judge)
    monkeypatch.setattr(mutants, "copy_of", lambda root, to: None)
    monkeypatch.setattr(mutants.quick, "changed", lambda since, root: ["README.md"])
    files = ["helpers/comm/mesh.py", "helpers/comm/__init__.py", "helpers/comm/ledger.py"]
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--most", "3", "--seed", "5", *files])
    assert mutants.main() == survive
    assert asked == [(files[0], 3, 5), (files[2], 3, 5)]
    said = capsys.readouterr().out
    assert ("helpers/comm/ledger.py:3\n    - a > b\n    + a >= b" in said) == survive
    assert f"{2 * survive} survived\n" in said
    monkeypatch.setattr(sys, "argv", ["mutants.py", files[0]])
    assert mutants.main() == survive
    assert asked[2:] == [(files[0], 30, 0)]
    monkeypatch.setattr(sys, "argv", ["mutants.py"])
    assert mutants.main() == 0
    assert "no file of helpers/ has changed; name one\n" in capsys.readouterr().out
