"""A library that is not installed is named in one line, with the command that installs it."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runtime import missing

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
    with pytest.raises(missing.MissingLibrary) as caught:
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
    monkeypatch.setattr(missing, "ROOT", tmp_path)
    assert str(missing.MissingLibrary("scipy")).endswith("pip install scipy`.")


def test_a_rank_can_send_the_error():
    error = missing.MissingLibrary("scipy")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.name) == (type(error), str(error), "scipy")


def test_the_finder_is_there_once():
    missing.explain_missing()
    names = [getattr(each, "__name__", "") for each in sys.meta_path]
    assert names.count("LastFinder") == 1
