"""`make test` and `make quick`: what they run, how they add up results, and their exit codes."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.groups import stays_together

ROOT = Path(__file__).resolve().parent.parent
MIXED = """
import os, pytest, signal
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
with open(f"collected-{WORKER}", "a") as file: file.write("mixed ")
@pytest.fixture
def broken():
    yield
    raise RuntimeError("while tidying up")
def test_passes(): assert WORKER
def test_can_be_interrupted():
    with pytest.raises(KeyboardInterrupt): signal.raise_signal(signal.SIGINT)
def test_fails(): assert not WORKER
def test_skips(): pytest.skip("here")
@pytest.mark.alone
def test_alone(): assert WORKER is None
@pytest.mark.alone
def test_ends_badly(broken): pass
"""
COSTLY = """
import os, pathlib, pytest, time
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
with open(f"collected-{WORKER}", "a") as file: file.write("costly ")
@pytest.fixture(scope="module")
def shared():
    with open("made", "a") as file: file.write("once ")
@pytest.mark.parametrize("k", range(10))
def test_with_it(shared, k): time.sleep(0.02)
@pytest.mark.parametrize("k", range(10))
def test_without(k): time.sleep(0.02)
"""
UNSTEADY = """
import pathlib
def test_fails_once():
    seen = pathlib.Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
LONG = """
import os, pathlib, time
def test_long():
    pathlib.Path("began").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path):
    """A folder with this project's tools and settings, but without tests."""
    for name in (".ci/suite.py", "tests/groups.py", "pyproject.toml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
    tmp_path.joinpath("notebooks").mkdir()
    return tmp_path


def start(project, *arguments):
    """Start the program. Its processes load only the plugins that it needs: each costs time."""
    names = [name for name in os.environ if name.startswith("PYTEST_")]
    environ = {name: value for name, value in os.environ.items() if name not in names}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environ["PYTEST_PLUGINS"] = "nbval.plugin,pytest_timeout,xdist.plugin"
    command = [sys.executable, project / ".ci" / "suite.py", "-p", "no:cacheprovider", *arguments]
    return subprocess.Popen(
        command,
        env={**environ, "PYTHONPATH": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # like a background job
    )


def test_two_runs_and_their_sum(project):
    """Groups too: a costly fixture runs once, and a notebook's cells keep their order.

    Not all processes begin to collect with the same file.
    """
    (project / "tests" / "test_mixed.py").write_text(MIXED)
    (project / "tests" / "test_costly.py").write_text(COSTLY)
    for name in ("one", "two", "three"):
        cells = [new_code_cell("x = 0"), *(new_code_cell(f"assert x == {k}; x += 1")
                                           for k in range(5))]  # fmt: skip
        nbformat.write(new_notebook(cells=cells), project / "notebooks" / f"{name}.ipynb")
    process = start(project)
    out, _ = process.communicate(timeout=200)
    assert out.splitlines()[-1] == "41 passed, 2 failed, 1 skipped", out
    assert process.returncode == 1
    assert (project / "made").read_text() == "once "
    begun = {path.read_text().split()[0] for path in project.glob("collected-gw*")}
    assert begun == {"costly", "mixed"}


def test_a_test_that_fails_once_is_named(project):
    (project / "tests" / "test_unsteady.py").write_text(UNSTEADY)
    process = start(project)
    out, _ = process.communicate(timeout=200)
    name = "tests/test_unsteady.py::test_fails_once"
    assert out.splitlines()[-2] == f"unsteady: {name} failed, and passed alone", out
    assert out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped", out
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("runs", "code", "last"),
    [
        ([(0, "ps"), (0, "p")], 0, "2 passed, 0 failed, 1 skipped"),
        ([(1, "pf"), (0, "p"), (1, "f")], 1, "2 passed, 1 failed, 0 skipped"),
        ([(0, "p"), (1, "f"), (1, "f")], 1, "1 passed, 1 failed, 0 skipped"),
        ([(5, ""), (0, "p")], 0, "1 passed, 0 failed, 0 skipped"),
        ([(0, "p"), (5, "")], 0, "1 passed, 0 failed, 0 skipped"),
        ([(5, ""), (1, "f"), (1, "f")], 1, "0 passed, 1 failed, 0 skipped"),
        ([(5, ""), (5, "")], 5, "0 passed, 0 failed, 0 skipped"),
        ([(137, "f"), (0, "p")], 137, "1 passed, 1 failed, 0 skipped"),
        # what failed once passes alone, or only a part of it does, or too much failed
        ([(1, "pf"), (0, "p"), (0, "p")], 0, "3 passed, 0 failed, 0 skipped"),
        ([(1, "ff"), (1, "f"), (0, "ppp")], 0, "3 passed, 0 failed, 0 skipped"),
        ([(1, "ff"), (0, "p"), (1, "pf")], 1, "1 passed, 2 failed, 0 skipped"),
        ([(1, "ff"), (0, "p"), (4, "")], 1, "1 passed, 2 failed, 0 skipped"),
        ([(1, "fff"), (1, "f")], 1, "0 passed, 4 failed, 0 skipped"),
        ([(2, "f"), (0, "p")], 2, "1 passed, 1 failed, 0 skipped"),
    ],
)
def test_what_the_runs_come_to(suite, monkeypatch, capsys, runs, code, last):
    kinds = {"p": "passed", "f": "failed", "s": "skipped"}
    given, environs, left, turns = [], [], list(runs), []

    def pytest(*options, **environ):
        turns.append(hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH)
        found, tests = left.pop(0)
        failed = [f"t.py::{len(given)}{k}" for k in range(tests.count("f"))]
        given.append(options)
        environs.append(environ)
        return suite.Run(found, Counter(kinds[letter] for letter in tests), failed)

    monkeypatch.setattr(suite, "pytest", pytest)
    with suite.turns("SCHED_OTHER"):  # this test itself may run in the first run
        assert suite.main(["tests/comm", "-x"]) == code
    *unsteady, total = capsys.readouterr().out.splitlines()
    assert total == last
    assert not left
    # only tests that run beside others must not spin: some of the others measure time
    polite = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
    assert environs == [polite, {}, {}][: len(runs)]
    # and only they must not interrupt each other
    assert turns == [hasattr(os, "SCHED_BATCH"), False, False][: len(runs)]
    assert [options[-2:] for options in given[:2]] == [("tests/comm", "-x")] * 2
    failed = [f"t.py::{i}{k}" for i in range(2) for k in range(runs[i][1].count("f"))]
    assert given[2:] == ([("-n", "0", *failed)] if len(runs) == 3 else [])
    passed = len(runs) == 3 and runs[2][0] == 0
    assert unsteady == [f"unsteady: {t} failed, and passed alone" for t in failed if passed]


def test_where_a_policy_is_forbidden_the_tests_run_as_usual(suite, monkeypatch):
    def forbidden(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)
    with suite.turns("SCHED_BATCH"):
        pass
    with suite.turns("SCHED_OF_NO_SYSTEM"):
        pass


def test_the_second_run_collects_the_files_with_the_mark(suite, project, monkeypatch):
    """All of them, if the caller names no path: a file that is left out would never run."""
    (project / "tests" / "deep").mkdir()
    (project / "tests" / "deep" / "test_mixed.py").write_text(MIXED)
    (project / "tests" / "test_other.py").write_text(UNSTEADY)
    monkeypatch.setattr(suite, "ROOT", project)
    mixed = [str(project / "tests" / "deep" / "test_mixed.py")]
    assert suite.marked([]) == suite.marked(["-x", "-k", "alone"]) == mixed
    assert suite.marked(["tests"]) == []
    assert suite.marked(["-x", "tests/test_other.py::test_fails_once"]) == []


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 3), (3, 5), (8, 12)])
def test_a_process_may_wait_without_a_core_that_waits_too(suite, monkeypatch, cores, workers):
    monkeypatch.setattr(suite, "cores", lambda: cores)
    assert suite.workers() == workers


def test_the_cores_of_this_process_count(suite, monkeypatch):
    monkeypatch.setattr(suite.os, "sched_getaffinity", lambda pid: {0: {2, 5, 7}}[pid])
    monkeypatch.setattr(suite.os, "cpu_count", lambda: 9)
    assert suite.cores() == 3
    monkeypatch.delattr(suite.os, "sched_getaffinity")  # as on a Mac
    assert suite.cores() == 9


ABOVE = """
import pytest
@pytest.fixture(scope="module")
def made(): pass
@pytest.fixture
def used(made): pass
@pytest.fixture
def fresh(): pass
@pytest.fixture(autouse=True, scope="module")
def always(): pass
"""


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("def test(made): pass", True),
        ("def test(used): pass", True),
        ("pytestmark = pytest.mark.usefixtures('used')\ndef test(): pass", True),
        ("@pytest.fixture(scope='module')\ndef own(): pass\ndef test(own): pass", True),
        ("def test(fresh): made = used = 1", False),
        ("@pytest.fixture\ndef own(): pass\ndef test(own): pass", False),
    ],
)
def test_a_file_whose_tests_share_a_fixture_stays_in_one_process(tmp_path, text, together):
    (tmp_path / "conftest.py").write_text(ABOVE)
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "test_one.py"
    file.write_text(text)
    assert stays_together(file) == together


def test_what_pytest_cannot_run_has_failed(suite, monkeypatch, tmp_path, capfd):
    """pytest refuses its options, or is killed: there is no report."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\n$DEED\n")
    fake.chmod(0o755)
    monkeypatch.setattr(suite.sys, "executable", str(fake))
    for code in (1, 4):
        assert suite.pytest(DEED=f"exit {code}") == suite.Run(code, {"failed": 1}, [])
    assert suite.pytest(DEED="eval kill -9 $$") == suite.Run(137, {"failed": 1}, [])
    assert suite.pytest(DEED="exit 5") == suite.Run(5, {}, [])


def test_a_report_is_counted(suite, tmp_path):
    """An error in a fixture's teardown makes a passed test fail; both count as one test."""
    cases = ("", "<failure/>", "<error/>", "<skipped/>", "<properties/><system-out/>",
             "<skipped/><error/>")  # fmt: skip
    cells = '<testcase file="a.ipynb" name="Cell 0"><failure/></testcase>' * 2
    text = cells + "".join(
        f'<testcase file="a.py" name="{k}">{case}</testcase>' for k, case in enumerate(cases)
    )
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    assert suite.read(report) == (
        {"passed": 2, "failed": 5, "skipped": 1},
        ["a.ipynb", "a.py::1", "a.py::2", "a.py::5"],
        [],
    )


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize(
    ("system", "file", "expected"),
    [
        ("linux", "tests/parallel/libraries/test_deepspeed_zero.py", ["test_it"]),
        ("linux", "tests/parallel/test_on_gpus.py", []),
        ("darwin", "tests/parallel/libraries/test_deepspeed_zero.py", []),  # it is for Linux
    ],
)
def test_a_skipped_test_of_deepspeed_is_a_failure(
    suite, monkeypatch, tmp_path, capsys, system, file, expected, run
):
    """From the report to the last line, with one passed test beside it."""
    cases = f'<testcase file="{file}" name="test_it"><skipped/></testcase><testcase name="ok"/>'
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    monkeypatch.setattr(suite.sys, "platform", system)
    first, none = suite.Run(0, *suite.read(report)), suite.Run(5, Counter(), [])
    runs = [first, none] if run == 0 else [none, first]
    monkeypatch.setattr(suite, "pytest", lambda *_, **__: runs.pop(0))
    code = suite.main([])
    *named, last = capsys.readouterr().out.splitlines()
    assert code == len(expected)
    assert named == [f"skipped, and must run: {file}::{test}" for test in expected]
    assert last == f"1 passed, {len(expected)} failed, {1 - len(expected)} skipped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(project, number):
    (project / "tests" / "test_long.py").write_text(LONG)
    process = start(project)
    end = time.monotonic() + 60
    while not (project / "began").exists() or not (project / "began").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    if number == signal.SIGINT:  # like a terminal: to all its processes
        for child in psutil.Process(process.pid).children():
            child.send_signal(number)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    worker, end = int((project / "began").read_text()), time.monotonic() + 30
    while os.path.exists(f"/proc/{worker}"):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.stdout.close()


def commit(folder, *files):
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {file}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", folder]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)


def test_quick_sees_what_changed(quick, tmp_path):
    commit(tmp_path, "helpers/a/one.py", "helpers/a/two.py", "helpers/a/gone.py", ".gitignore")
    assert quick.changed("HEAD", tmp_path) == []
    (tmp_path / "helpers/a/two.py").write_text("x = 1\n")
    (tmp_path / "helpers/a/gone.py").unlink()
    (tmp_path / "helpers/a/näw.py").write_text("")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a.log").write_text("")
    assert quick.changed("HEAD", tmp_path) == [
        ".gitignore",
        "helpers/a/gone.py",
        "helpers/a/näw.py",
        "helpers/a/two.py",
    ]
    commit(tmp_path)
    assert quick.changed("HEAD", tmp_path) == []
    assert len(quick.changed("HEAD~1", tmp_path)) == 4
    with pytest.raises(SystemExit, match="no-such-commit"):
        quick.changed("no-such-commit", tmp_path)


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("helpers/comm/mesh.py", ["tests/comm/test_mesh.py"]),
        (
            "helpers/runtime/local/server.py",
            [
                "tests/runtime/local/test_server.py",
                "tests/runtime/local/test_server_lines.py",
            ],
        ),
        ("helpers/scaling/sweep.csv", ["tests/scaling/test_sweep.py"]),
        ("helpers/comm/__init__.py", ["tests/test_import.py"]),
        ("helpers/__init__.py", ["tests/test_import.py"]),
        (
            "helpers/models/trained/__init__.py",
            ["tests/test_import.py", "tests/models/test_trained.py"],
        ),
        ("tests/comm/test_mesh.py", ["tests/comm/test_mesh.py"]),
        ("tests/comm/test_none.py", []),
        ("tests/comm/killable.py", ["tests/comm/test_shared_barrier.py"]),
        ("notebooks/solutions/week01.py", ["tests/notebooks/test_exercises.py"]),
        ("notebooks/solutions/mpi/train_gpt.py", ["tests/notebooks/test_scripts.py"]),
        ("notebooks/week99.ipynb", []),
        (
            ".ci/slides/fit.js",
            ["tests/notebooks/test_slides.py", "tests/browser/test_slides.py"],
        ),
        ("notebooks/rise.css", ["tests/notebooks/test_slides.py"]),
        (".ci/notebooks.py", ["tests/notebooks/test_tool.py"]),
        (".ci/licences.md", ["tests/test_licences.py"]),
        (".ci/lock.txt", ["tests/test_lock.py"]),
        (".ci/lock-late.txt", ["tests/test_lock.py"]),
        (".ci/suite.py", ["tests/test_suite.py"]),
        (".ci/student.py", ["tests/notebooks/test_student.py"]),
        (".ci/handout.py", ["tests/notebooks/test_handout.py"]),
        (".ci/mutants.py", ["tests/test_mutants.py"]),
        ("Makefile", ["tests/test_suite.py"]),
        ("README.md", []),
        # they concern all tests, and the tool prints that
        ("tests/conftest.py", []),
        ("tests/groups.py", []),
        ("pyproject.toml", []),
        ("environment.yml", ["tests/test_lock.py", "tests/test_licences.py"]),
        (".ci/install", ["tests/test_lock.py"]),
        (".ci/loading.py", ["tests/notebooks/test_slides.py"]),
        (".ci/site/conf.py", ["tests/notebooks/test_site.py", "tests/browser/test_site.py"]),
        (".ci/run", ["tests/test_suite.py"]),
        ("notebooks/table.csv", ["tests/notebooks/test_scripts.py"]),
    ],
)
def test_quick_maps_a_file_to_its_tests(quick, path, tests):
    assert quick.find_tests(path) == tests


@pytest.mark.parametrize("codes", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 5)])
def test_quick_runs_lint_and_the_tests_of_what_changed(quick, monkeypatch, capsys, codes):
    left, lines, paths = list(codes), [], ["helpers/comm/mesh.py", "tests/conftest.py"]
    monkeypatch.setattr(quick, "changed", {"abc": paths, "HEAD": []}.get)
    monkeypatch.setattr(
        quick.subprocess, "call", lambda line, cwd: lines.append(line[1:]) or left.pop(0)
    )
    assert quick.main("abc") == any(codes)
    lint = [["-m", "ruff", "check"], ["-m", "ruff", "format", "--check"]]
    assert lines == [*lint, [".ci/suite.py", "tests/comm/test_mesh.py", *quick.ALWAYS]]
    said = capsys.readouterr().out
    assert "tests/conftest.py matters to every test" in said
    assert said.count("matters to every test") == 1
    assert said.endswith(
        "2 changed files:\n  tests/comm/test_mesh.py\n  tests/test_floors.py\n"
        "  tests/test_environment.py\n"
    )
    left, lines[:] = [0, 0], []
    assert quick.main() == 0
    assert lines == lint
    assert capsys.readouterr().out == "0 changed files:\n  nothing to test\n"


TREE = {
    "helpers/a/mesh.py": "def cut(): ...",
    "helpers/a/tool.py": "class Saw:\n    def inner(self): ...\n\ndef _own(): ...",
    "helpers/b/deep/used.py": "",
    "helpers/b/deep/unused.py": "",
    "notebooks/week01.ipynb": "",
    "tests/conftest.py": "",
    "tests/a/conftest.py": "@pytest.fixture\ndef saw(): ...\n\ndef mesh(): ...",
    "tests/a/other/conftest.py": "def helper(): ...",
    "tests/a/other/test_x.py": "",
    "tests/a/test_mesh.py": "def test_it(tmp_path, saw): ...",
    "tests/a/test_mesh_by_hand.py": "def test_it(saws): saw = 1",
    "tests/a/test_meshes.py": "assert Saw()",
    "tests/a/test_none.py": "Sawn, inner, _own",
    "tests/b/test_b.py": "import helpers.b.deep.used_up",
    "tests/c/test_c.py": "if True:\n    from helpers.b.deep import others, used",
    "tests/c/test_d.py": "from helpers.b.deep.used import x\nimport tests.c.shared",
    "tests/c/shared.py": "",
}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("helpers/a/mesh.py", "a/test_mesh a/test_mesh_by_hand"),
        ("helpers/a/mesh_of_two.py", "a/test_mesh a/test_mesh_by_hand"),
        ("helpers/a/mesh_by_hand.py", "a/test_mesh_by_hand"),
        ("helpers/a/tool.py", "a/test_meshes"),
        ("helpers/a/none_left.py", "a/test_none"),
        ("helpers/a/gone.py", "a/test_mesh a/test_mesh_by_hand a/test_meshes a/test_none"),
        ("helpers/b/deep/used.py", "c/test_c c/test_d"),
        ("helpers/b/deep/unused.py", "b/test_b"),
        ("helpers/d/x.py", ""),
        ("tests/a/conftest.py", "a/test_mesh"),
        ("tests/a/other/conftest.py", "a/other/test_x"),
        ("tests/a/other/deep/data.json", "a/other/test_x"),
        ("tests/c/shared.py", "c/test_d"),
        ("tests/c/test_d.py", "c/test_d"),
        ("tests/c/test_gone.py", ""),
    ],
)
def test_quick_finds_the_nearest_tests(quick, tmp_path, path, tests):
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert quick.find_tests(path, tmp_path) == [f"tests/{name}.py" for name in tests.split()]
    own = ["notebooks/week01.ipynb", "tests/notebooks/test_format.py"]
    assert quick.find_tests(own[0], tmp_path) == own


def test_quick_asks_who_takes_a_fixture(quick):
    found = quick.find_tests("tests/scaling/conftest.py")
    assert "tests/scaling/test_chinchilla.py" in found
    assert "tests/scaling/test_table.py" not in found


def test_quick_falls_back_on_the_folder(quick):
    assert quick.find_tests("tests/models/conftest.py") == quick.find_tests("tests/models/x.json")
    # a file below all tests belongs to the tests above it
    found = quick.find_tests("tests/runtime/joined/scripts/joins.py")
    assert "tests/runtime/joined/test_member.py" in found


def test_quick_finds_tests_for_every_file_of_helpers(quick):
    files = [f for f in (ROOT / "helpers").rglob("*.py") if "__pycache__" not in f.parts]
    assert len(files) > 50
    for file in files:
        found = quick.find_tests(str(file.relative_to(ROOT)))
        assert found, file
        assert all((ROOT / path).is_file() for path in found)
