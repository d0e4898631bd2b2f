"""`make test` and `make quick`: what they run, how they add up results, and their exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import ci

ROOT = Path(__file__).resolve().parent.parent
MIXED = """
import os, pytest, signal
open(f"collected-{os.getpid()}", "a").write("mixed ")
@pytest.fixture
def broken():
    yield
    raise RuntimeError("while tidying up")
def test_passes(): assert "SUITE_SHARE" not in os.environ and os.environ["HF_HUB_OFFLINE"] == "1"
def test_can_be_interrupted():
    with pytest.raises(KeyboardInterrupt): signal.raise_signal(signal.SIGINT)
def test_fails(): assert "polite" == os.environ["OMP_WAIT_POLICY"]
def test_skips(): pytest.skip("here")
@pytest.mark.alone
def test_alone(): assert "OMP_WAIT_POLICY" not in os.environ
@pytest.mark.alone
def test_ends_badly(broken): pass
"""
COSTLY = """
import os, pytest, time
open(f"collected-{os.getpid()}", "a").write("costly ")
@pytest.fixture(scope="module")
def shared(beside):
    with open("made", "a") as file: file.write("once ")
@pytest.mark.parametrize("k", range(10))
def test_with_it(shared, k): time.sleep(0.02)
@pytest.mark.parametrize("k", range(10))
def test_without(k, above): time.sleep(0.02)
"""
ABOVE = """
import pytest
@pytest.fixture(scope="module")
def beside(): pass
@pytest.fixture(scope="session")
def above(): pass
"""
UNSTEADY = """
import pathlib
def test_fails_once():
    seen = pathlib.Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
DIES = """
import os, signal
def test_before(): pass
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
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
    for name in ("suite.py", "shares.py", "choose.py", "../tests/share.py", "../pyproject.toml"):
        path = tmp_path / ".ci" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((ROOT / ".ci" / name).read_bytes())
    tmp_path.joinpath("notebooks").mkdir()
    return tmp_path


def start(project, *arguments, **environ):
    """Start the program on one core, so that it starts two processes of pytest: each costs time.

    They load only the plugins that they need.
    """
    names = [
        name for name in os.environ if name.startswith(("PYTEST_", "OMP_", "HF_")) or name == "CI"
    ]
    given = {name: value for name, value in os.environ.items() if name not in names}
    given["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    given["PYTEST_PLUGINS"] = "nbval.plugin,pytest_timeout"
    return subprocess.Popen(
        [sys.executable, project / ".ci" / "suite.py", *arguments],
        env={**given, "PYTHONPATH": str(project), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=on_one_core_in_the_background,
    )


def on_one_core_in_the_background():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a background job
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def finish(process, code, *last):
    """Wait for the program; compare its exit code and its last lines."""
    out, _ = process.communicate(timeout=200)
    assert out.splitlines()[-len(last) :] == list(last), out
    assert process.returncode == code
    return out


def test_two_runs_and_their_sum(project):
    """A file runs in one process, so a costly fixture runs once, and cells keep their order."""
    (project / "tests" / "deep").mkdir()
    (project / "tests" / "conftest.py").write_text(ABOVE)
    (project / "tests" / "test_mixed.py").write_text(MIXED)
    (project / "tests" / "deep" / "test_costly.py").write_text(COSTLY)
    for name in ("one", "two", "three"):
        cells = [new_code_cell("x = 0"), *(new_code_cell(f"assert x == {k}; x += 1")
                                           for k in range(5))]  # fmt: skip
        nbformat.write(new_notebook(cells=cells), project / "notebooks" / f"{name}.ipynb")
    out = finish(start(project), 1, "1 × Skipped: here", "41 passed, 2 failed, 1 skipped")
    assert "tests/deep/test_costly.py: 20 passed, " in out
    assert "AssertionError: assert 'polite' == 'passive'" in out
    assert (project / "made").read_text() == "once "
    begun = "".join(path.read_text() for path in project.glob("collected-*")).split()
    assert sorted(begun) == ["costly", "mixed", "mixed", "mixed"]  # together, alone and again


def test_a_test_that_fails_once_is_named_and_fails_in_ci(project):
    (project / "tests" / "test_unsteady.py").write_text(UNSTEADY)
    finish(
        start(project, "tests", CI="1"),
        1,
        "unsteady: tests/test_unsteady.py::test_fails_once failed, and passed alone",
        "0 passed, 1 failed, 0 skipped",
    )


def test_a_process_that_dies_leaves_the_results_before(project):
    (project / "tests" / "test_dies.py").write_text(DIES)
    (project / "tests" / "test_x.py").write_text("def test_x(): pass\ndef test_y(): assert 0")
    out = finish(start(project, "tests"), 137, "2 passed, 2 failed, 0 skipped")
    assert "pytest ended with code -9 at tests/test_dies.py::test_dies" in out


def test_pytest_s_own_options_and_what_it_refuses(project):
    for name in "abc":
        text = "def test_one(): assert 0\ndef test_two(): pass\n"
        (project / "tests" / f"test_{name}.py").write_text(text)
    names = ["tests/test_a.py::test_two", "tests/test_b.py"]
    finish(start(project, *names, "-k", "two"), 0, "2 passed, 0 failed, 0 skipped")
    # of two processes, each may have begun with a file
    out, _ = (process := start(project, "tests", "-x")).communicate(timeout=200)
    assert "passed, 0 failed" not in out.splitlines()[-1]
    assert process.returncode == 1
    out, _ = (process := start(project, "tests/test_a.py", "--no-such")).communicate(timeout=200)
    assert "unrecognized arguments: --no-such" in out
    assert process.returncode == 4


@pytest.fixture
def runs(suite, monkeypatch):
    """Runs the program with the given results in the place of pytest's."""

    def main(results, *arguments, **options):
        given, left = [], list(results)

        def run(files, *options, **more):
            batch = hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH
            given.append((files, options, more, batch))
            code, tests = left.pop(0)
            kinds = {"p": "passed", "f": "failed", "s": "skipped"}
            tests = [one if ":" in one else f"t{len(given)}.py::{one}{k}:{one}"
                     for k, one in enumerate(tests)]  # fmt: skip
            pairs = (one.rpartition(":") for one in tests)
            return suite.Run(code, {name: kinds[kind] for name, _, kind in pairs})

        monkeypatch.setattr(suite, "run", run)
        for name, value in options.items():
            monkeypatch.setattr(suite.choose, name, value)
        with suite.turns("SCHED_OTHER"):  # this test itself may run in the first run
            code = suite.main(list(arguments))
        assert not left
        return code, given

    monkeypatch.delenv("CI", raising=False)
    return main


@pytest.mark.parametrize(
    ("results", "code", "last"),
    [
        ([(0, "ps"), (0, "p")], 0, "2 passed, 0 failed, 1 skipped"),
        ([(1, "pf"), (0, "p"), (1, "f")], 1, "2 passed, 1 failed, 0 skipped"),
        ([(0, "p"), (1, "f"), (1, "f")], 1, "1 passed, 1 failed, 0 skipped"),
        ([(5, ""), (0, "p")], 0, "1 passed, 0 failed, 0 skipped"),
        ([(0, "p"), (5, "")], 0, "1 passed, 0 failed, 0 skipped"),
        ([(5, ""), (5, "")], 5, "0 passed, 0 failed, 0 skipped"),
        ([(137, "f"), (0, "p")], 137, "1 passed, 1 failed, 0 skipped"),
        # what failed once passes alone, or only a part of it does, or too much failed
        ([(1, "pf"), (0, "p"), (0, "p")], 0, "3 passed, 0 failed, 0 skipped"),
        ([(1, "ff"), (1, "f"), (0, "ppp")], 0, "3 passed, 0 failed, 0 skipped"),
        ([(1, "ff"), (1, "f"), (1, "pf")], 1, "0 passed, 3 failed, 0 skipped"),
        ([(1, "ffff"), (0, "p")], 1, "1 passed, 4 failed, 0 skipped"),
    ],
)
def test_what_the_runs_come_to(runs, capsys, results, code, last):
    found, given = runs(results, "tests/comm", "-x")
    *unsteady, total = capsys.readouterr().out.splitlines()
    assert (found, total) == (code, last)
    # only tests that run beside others must not spin or interrupt: some of the others measure time
    polite = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
    (files, first, more, batch), (few, second, fewer, alone), *third = given
    assert polite.items() <= more.items()
    assert not polite.keys() & fewer.keys()
    assert (batch, alone) == (hasattr(os, "SCHED_BATCH"), False)
    assert first == ("-m", "not alone", "-x")
    assert second == ("-m", "alone", "-x")
    assert "tests/comm/test_mesh.py" in files
    assert few == ["tests/comm/test_paced.py"]
    names = [f"t{i}.py::f{k}" for i, (_, tests) in enumerate(results[:2], 1)
             for k, kind in enumerate(tests) if kind == "f"]  # fmt: skip
    assert [again[0] for again in third] == [names] * (len(results) - 2)
    passed = len(results) == 3 and results[2][0] == 0
    assert unsteady == [f"unsteady: {t} failed, and passed alone" for t in names if passed]


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize(
    ("system", "file", "failed"),
    [
        ("linux", "tests/parallel/libraries/test_deepspeed_zero.py", 1),
        ("linux", "tests/parallel/test_on_gpus.py", 0),
        ("darwin", "tests/parallel/libraries/test_deepspeed_zero.py", 0),  # it is for Linux
    ],
)
def test_a_skipped_test_of_deepspeed_is_a_failure(
    suite, runs, monkeypatch, capsys, system, file, failed, run
):
    monkeypatch.setattr(suite.sys, "platform", system)
    results = [(0, [f"{file}::test_it:s", "ok:p"]), (5, "")]
    code, _ = runs(results[:: 1 - 2 * run], "tests/comm")
    *named, last = capsys.readouterr().out.splitlines()
    assert code == failed
    assert named == [f"skipped, and must run: {file}::test_it"] * failed
    assert last == f"1 passed, {failed} failed, {1 - failed} skipped"


def test_a_short_run_leaves_out_what_the_file_of_durations_names(suite, runs, monkeypatch):
    out = ["notebooks/week02_scaling_laws.ipynb", "tests/comm/test_mesh.py::test_slow[1]"]
    known = {"left out": out, "files": {"tests/test_lock.py": 9.0, "tests/test_import.py": 30.0}}
    done = [(0, "p"), (5, "")]
    wanted = {"known": lambda: known}
    _, [(short, _, options, _), (marked, *_)] = runs(done, **wanted)
    assert options["left_out"] == out
    assert short[-2:] == ["tests/test_import.py", "tests/test_lock.py"]  # unknown ones begin
    assert set(suite.files()) - set(short) == {out[0]}
    assert {"tests/comm/test_mesh.py", "notebooks/project/project_distributed_training.ipynb"} < {
        *short
    }
    assert marked == suite.marked(short) != []
    for arguments in (["--all"], ["tests", "notebooks"]):
        _, [(every, _, options, _), _] = runs(done, *arguments, **wanted)
        assert sorted(every) == sorted(suite.files())
        assert options["left_out"] == []
    written = []
    wanted["write"] = lambda together, alone, processes: written.append(processes)
    assert runs(done, "--durations", **wanted)[0] == 0
    assert runs([(1, "ffff"), (5, "")], "--durations", **wanted)[0] == 1
    assert runs([(137, "f"), (5, "")], "--durations", **wanted)[0] == 137
    assert written == [suite.workers()] * 2  # a process that died has left out tests


def test_which_tests_stay(tmp_path, monkeypatch, capsys):
    """By hand: with two processes at once in the first run."""
    choose = ci("choose")
    monkeypatch.setattr(choose, "SLOW", 10)
    for name, text in (("a", ""), ("twin", "from helpers.training.twin import compare")):
        (tmp_path / f"test_{name}.py").write_text(text)
    for name in ("test_faults.py", "test_site.py"):
        (tmp_path / name).touch()
    together, alone = choose.Run(), choose.Run()

    def ran(run, file, seconds, setup=0, **tests):
        """Only the first test's set-up takes time."""
        run.seconds[file] = seconds
        for name, its in tests.items():
            run.tests[f"{file}::{name}"], run.seconds[f"{file}::{name}"] = "passed", its + setup
            run.setups[f"{file}::{name}"], setup = setup, 0

    ran(together, "notebooks/week01_a.ipynb", 50, one=20, two=29)
    ran(together, "notebooks/week01b_b.ipynb", 40, one=20, two=19)
    ran(together, "notebooks/week02_c.ipynb", 30, one=20, two=9)
    ran(together, "test_a.py", 48, quick=2, slow=40)  # 6 s for imports
    ran(together, "test_twin.py", 62, **{"x[1]": 12, "x[2]": 11, "y[1]": 17, "z[1]": 22})
    ran(together, "test_site.py", 73, 70, one=1, two=1, three=1)  # a build that all share
    ran(alone, "test_faults.py", 24, **{f"f{k}": k for k in range(1, 7)}, f7=3)
    cost = choose.costs(together, alone, 2)
    assert cost.own["notebooks/week01_a.ipynb"] == 25
    assert (cost.own["test_a.py::quick"], cost.first["test_a.py"]) == (1, 3)
    assert (cost.own["test_site.py::one"], cost.first["test_site.py"]) == (0.5, 35)
    assert cost.own["test_faults.py::f3"] == 3
    rules = {"notebooks/week01b_b.ipynb", "notebooks/week02_c.ipynb", "test_a.py::quick",
             "test_twin.py::x[2]", "test_twin.py::y[1]",
             *(f"test_faults.py::f{k}" for k in (1, 2, 3, 7, 4, 5))}  # fmt: skip
    assert choose.stay(cost, 0, tmp_path) == rules  # z and the site take more than ten seconds
    spent = cost.total(rules)
    assert spent == 20 + 15 + (1 + 3) + 5.5 + 8.5 + (1 + 2 + 3 + 3 + 4 + 5)
    assert choose.stay(cost, (spent + 6) / 60, tmp_path) == {*rules, "test_faults.py::f6"}
    assert choose.stay(cost, (spent + 5.9) / 60, tmp_path) == rules
    assert choose.stay(cost, 9, tmp_path) == {*cost.own} - {"notebooks/week01_a.ipynb"}
    monkeypatch.setattr(choose, "NOTEBOOKS", 34)  # of 20 and 15 seconds
    assert rules - choose.stay(cost, 0, tmp_path) == {"notebooks/week01b_b.ipynb"}
    monkeypatch.setattr(choose, "FILE", tmp_path / "durations.json")
    monkeypatch.setattr(choose, "stay", lambda cost: rules)
    assert choose.left_out() == []
    choose.write(together, alone, 2)
    choose.known.cache_clear()
    assert set(choose.left_out()) == {*cost.own} - rules
    assert choose.longest_first("test_a.py::quick") < choose.longest_first("test_faults.py")
    said = f"durations.json: {len(rules)} of {len(cost.own)} tests, {spent / 60:.1f} minutes\n"
    assert capsys.readouterr().out == said


def test_the_committed_durations_are_of_files_that_exist(suite):
    for name in [*suite.choose.known()["files"], *suite.choose.left_out()]:
        assert name.split("::")[0].startswith(("tests/", "notebooks/"))


def test_where_a_policy_is_forbidden_the_tests_run_as_usual(suite, monkeypatch):
    def forbidden(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)
    with suite.turns("SCHED_BATCH"):
        pass
    with suite.turns("SCHED_OF_NO_SYSTEM"):
        pass


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
        ("helpers/__init__.py", "import"),
        ("notebooks/mpi/train_gpt.py", "notebooks/test_scripts"),
        ("notebooks/solutions/week01.py", "notebooks/test_exercises"),
        ("notebooks/guide/faults.md", "notebooks/test_guide readme"),
        ("README.md", "readme notebooks/test_site"),
        (".ci/slides/fit.js", "notebooks/test_slides browser/test_slides"),
        (".ci/site/conf.py", "notebooks/test_site browser/test_site"),
        (".ci/lock-late.txt", "lock"),
        ("environment.yml", "lock licences"),
        (".ci/shares.py", "suite"),
        # nothing to test, or it concerns all tests and the tool prints that
        ("notebooks/week99.ipynb", ""),
        ("tests/conftest.py", ""),
        ("tests/share.py", ""),
        ("pyproject.toml", ""),
    ],
)
def test_quick_maps_a_file_to_its_tests(quick, path, tests):
    found = [str(Path(folder, f"test_{name}.py")) for folder, name in named(tests)]
    assert quick.find_tests(path) == found
    assert all((ROOT / file).is_file() for file in found)


def named(tests: str):
    """Read 'suite browser/test_lab' as pairs of a folder and a name."""
    for test in tests.split():
        folder, _, name = test.rpartition("/")
        yield Path("tests", folder), name.removeprefix("test_")


@pytest.mark.parametrize("codes", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 5)])
def test_quick_runs_lint_and_the_tests_of_what_changed(quick, monkeypatch, capsys, codes):
    left, lines, paths = list(codes), [], ["helpers/comm/mesh.py", "tests/conftest.py"]
    monkeypatch.setattr(quick, "changed", {"abc": paths, "HEAD": []}.get)
    monkeypatch.setattr(quick, "near", lambda file, root: [f"tests/comm/test_{file.stem}.py"])
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
    "helpers/a/__init__.py": "",
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
    "tests/a/deep/test_tools.py": "from helpers.a import (\n    mesh,\n    tool,\n)",
    "tests/b/test_b.py": "import helpers.b.deep.used_up",
    "tests/c/test_c.py": "if True:\n    from helpers.b.deep import others, used",
    "tests/c/test_d.py": "from helpers.b.deep.used import x\nimport tests.c.shared",
    "tests/c/shared.py": "",
}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("helpers/a/mesh.py", "a/deep/test_tools a/test_mesh a/test_mesh_by_hand"),
        ("helpers/a/mesh_by_hand.py", "a/test_mesh_by_hand"),
        ("helpers/a/tool.py", "a/deep/test_tools a/test_meshes"),
        ("helpers/a/none.csv", "a/test_none"),
        ("helpers/b/__init__.py", "import"),
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
    found = [str(Path(folder, f"test_{name}.py")) for folder, name in named(tests)]
    assert quick.find_tests(path, tmp_path) == found
    own = ["notebooks/week01.ipynb", "tests/notebooks/test_format.py"]
    assert quick.find_tests(own[0], tmp_path) == own


def test_quick_finds_tests_for_every_file_of_helpers(quick):
    files = [f for f in (ROOT / "helpers").rglob("*.py") if "__pycache__" not in f.parts]
    assert len(files) > 50
    for file in files:
        found = quick.find_tests(str(file.relative_to(ROOT)))
        assert found, file
        assert all((ROOT / path).is_file() for path in found)
