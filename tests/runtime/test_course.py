"""Variables that are set early, files of the course, and libraries that are not installed."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runtime import course
from helpers.runtime.course import NOTEBOOKS, course_file, set_defaults, share_package
from helpers.runtime.private import private_folder

COMPILER = "TORCHINDUCTOR_CACHE_DIR"
TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"
PROGRAM = """
import json
from helpers import launch

def by_the_libraries(worker):
    from huggingface_hub import constants
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    return cache_dir(), constants.HF_HUB_DISABLE_TELEMETRY

if __name__ == "__main__":
    print(json.dumps([launch(by_the_libraries, workers=1)[0], by_the_libraries(None)]))
"""


def test_ranks_and_notebook_keep_the_compilers_cache_to_themselves(tmp_path):
    """Asked of the libraries that read the variables, in a program of its own."""
    (tmp_path / "home").mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ours = ("HELPERS_CACHE", "XDG_CACHE_HOME", COMPILER, TELEMETRY)
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    environ |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = tmp_path / "home" / ".cache" / "training-at-scale" / "torchinductor"
    assert json.loads(done.stdout.splitlines()[-1]) == [[str(expected), True]] * 2
    assert expected.parent.stat().st_mode & 0o777 == 0o700  # so nobody else gets to what is in it


def test_what_the_reader_has_set_stays():
    environ = {COMPILER: "/mine", TELEMETRY: "0"}
    set_defaults(environ)
    assert environ == {COMPILER: "/mine", TELEMETRY: "0"}


def test_a_cache_that_others_can_write_is_not_used(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    environ = {}
    set_defaults(environ)
    assert environ[COMPILER] == str(private_folder() / "torchinductor")
    assert not list(tmp_path.iterdir())


def test_without_any_place_nothing_is_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("helpers.runtime.course.private_folder", full)
    environ = {}
    set_defaults(environ)
    assert environ == {TELEMETRY: "1"}


def full():
    raise OSError(28, "No space left on device")


def test_programs_find_this_package_first(tmp_path):
    environ = {}
    share_package(environ, tmp_path)
    assert environ == {"PYTHONPATH": str(tmp_path)}
    share_package(environ, tmp_path)
    assert environ == {"PYTHONPATH": str(tmp_path)}  # once
    environ = {"PYTHONPATH": f"{tmp_path}/below"}  # another folder
    share_package(environ, tmp_path)
    assert environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}{tmp_path}/below"
    environ = {"PYTHONPATH": f"{os.pathsep}/mine"}  # the first entry is the current folder
    share_package(environ, tmp_path)
    assert environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "", "/mine"]


def test_programs_find_an_installed_package_without_help():
    environ = {}
    share_package(environ, Path("/usr/lib/python3/dist-packages"))
    share_package(environ, Path("/venv/lib/python3.12/site-packages"))
    assert environ == {}


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_user_without_a_home_has_a_folder_until_the_end(monkeypatch, tmp_path, error):
    def no_home():
        raise error("no home")

    monkeypatch.setattr("helpers.runtime.course.cache_folder", no_home)
    monkeypatch.setattr("helpers.runtime.course.private_folder", lambda: tmp_path)
    environ = {}
    set_defaults(environ)
    assert environ == {TELEMETRY: "1", COMPILER: str(tmp_path / "torchinductor")}


NAME = "project/distributed.py"


def put(folder):
    path = folder / NAME
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.mark.parametrize("below", ["", "project"])
def test_the_student_s_own_copy_comes_first(tmp_path, monkeypatch, below):
    mine = put(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work" / below)
    assert course_file(NAME) == mine


def test_the_nearest_copy_comes_first(tmp_path, monkeypatch):
    put(tmp_path)
    mine = put(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    assert course_file(NAME) == mine


def test_a_notebook_alone_finds_it_in_the_clone(tmp_path, monkeypatch):
    (tmp_path / "project" / "distributed.py").mkdir(parents=True)  # a folder is no program
    monkeypatch.chdir(tmp_path)
    found = course_file(NAME)
    assert found == NOTEBOOKS / NAME
    assert "def " in found.read_text()


def test_a_file_that_nobody_has(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^project/mine.py is neither .* into /"):
        course_file("project/mine.py")


ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] != LIBRARY:
            return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def run(source, library):
    """Run a program on a Python that has all libraries except one."""
    source = WITHOUT.replace("LIBRARY", repr(library)) + source
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def as_if(source, file):
    """What the expression is worth in that file."""
    return eval(compile(source, file, "eval"), {"util": importlib.util})


@pytest.mark.parametrize(
    ("source", "library", "pip"),
    [
        ("from helpers import launch", "torch", "torch"),
        ("from helpers import plots; plots.curves({})", "matplotlib", "matplotlib"),
        ("import helpers.data.digits as d; d.digits('train')", "sklearn", "scikit-learn"),
    ],
)
def test_the_last_line_names_the_library_and_the_command(source, library, pip):
    code, _, errors = run(source, library)
    last = errors.splitlines()[-1]
    assert code == 1
    assert f"MissingLibrary: {library} is not installed" in last
    assert f"`pip install {pip}`" in last
    assert f'`pip install "{ROOT}[dev]"`' in last


def test_a_notebook_shows_this_line_alone():
    cell = "from helpers import launch"
    source = f"""
import ipykernel
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell(colors="nocolor").run_cell({cell!r})
"""
    _, shown, errors = run(source, "torch")
    [line] = (shown + errors).splitlines()
    assert line.startswith("MissingLibrary: torch is not installed in this Python.")
    assert "`%pip install torch`" in line


def test_other_code_asks_for_what_it_can_do_without():
    absent = "no_such_library"
    with pytest.raises(ModuleNotFoundError, match=rf"^No module named '{absent}'$"):
        importlib.import_module(absent)
    assert importlib.util.find_spec(absent) is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'json.no_such_part'"):
        importlib.import_module("json.no_such_part")


def test_this_package_may_ask_whether_a_library_is_there():
    own = str(ROOT / "helpers" / "some.py")
    assert as_if("util.find_spec('no_such_library')", own) is None
    with pytest.raises(course.MissingLibrary) as caught:
        as_if("__import__('no_such_library')", own)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_library"


def test_a_part_that_an_installed_library_lacks_is_another_error():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'json.no_such_part'"):
        as_if("__import__('json.no_such_part')", str(ROOT / "helpers" / "some.py"))


def test_a_folder_with_a_similar_name_is_not_this_package():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named"):
        as_if("__import__('no_such_library')", str(ROOT / "helpers_of_mine" / "some.py"))


def test_without_a_clone_only_the_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "ROOT", tmp_path)
    assert str(course.MissingLibrary("scipy")).endswith("pip install scipy`.")


def test_a_rank_can_send_the_error():
    error = course.MissingLibrary("scipy")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.name) == (type(error), str(error), "scipy")


def test_the_finder_is_there_once():
    course.explain_missing()
    names = [getattr(each, "__name__", "") for each in sys.meta_path]
    assert names.count("LastFinder") == 1
