"""Variables that are set before a library or another process could read them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runtime.course import NOTEBOOKS, course_file
from helpers.runtime.environment import set_defaults, share_package

COMPILER = "TORCHINDUCTOR_CACHE_DIR"
TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"
PROGRAM = """
import json, os
from helpers import launch

def by_the_libraries(worker):
    from huggingface_hub import constants
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    return cache_dir(), constants.HF_HUB_DISABLE_TELEMETRY

def by_name(worker):
    return os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"

if __name__ == "__main__":
    found = list(launch(LOOK, workers=1, start=START))
    print(json.dumps([found, LOOK(None), os.environ["TORCHINDUCTOR_CACHE_DIR"]]))
"""


def run(tmp_path, start="fork", look="by_name", **environ):
    """Look at what a rank and its program have.

    Args:
        look: "by_the_libraries" that read the variables: to import them takes 2 s of each process.
    """
    ours = ("HELPERS_CACHE", "XDG_CACHE_HOME", COMPILER, TELEMETRY)
    base = {name: value for name, value in os.environ.items() if name not in ours}
    base |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd()}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("START", repr(start)).replace("LOOK", look))
    command = [sys.executable, program]
    done = subprocess.run(command, env=base | environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("start", "look"), [("fork", "by_the_libraries"), ("spawn", "by_name")])
def test_ranks_and_notebook_keep_the_compilers_cache_to_themselves(tmp_path, start, look):
    (tmp_path / "home").mkdir()
    of_ranks, here, set_to = run(tmp_path, start, look)
    expected = tmp_path / "home" / ".cache" / "training-at-scale" / "torchinductor"
    assert of_ranks == [[str(expected), True]]
    assert here == [str(expected), True]
    assert set_to == str(expected)
    assert expected.parent.stat().st_mode & 0o777 == 0o700  # so nobody else gets to what is in it


def test_what_the_reader_has_set_stays(tmp_path):
    chosen = {COMPILER: str(tmp_path / "mine"), TELEMETRY: "0"}
    of_ranks, here, _ = run(tmp_path, **chosen)
    assert of_ranks == [[str(tmp_path / "mine"), False]]
    assert here == [str(tmp_path / "mine"), False]
    assert not (tmp_path / "home").exists()


def test_a_cache_that_others_can_write_is_not_used(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "tmp").mkdir()
    environ = {"HELPERS_CACHE": str(shared), "TMPDIR": str(tmp_path / "tmp")}
    of_ranks, _, set_to = run(tmp_path, **environ)
    assert of_ranks == [[set_to, True]]
    assert set_to.startswith(str(tmp_path / "tmp" / "helpers-"))
    assert not list(shared.iterdir())
    assert not list((tmp_path / "tmp").iterdir())  # it was gone with the program


def test_without_any_place_nothing_is_set(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("helpers.runtime.environment.private_folder", full)
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

    monkeypatch.setattr("helpers.runtime.environment.cache_folder", no_home)
    monkeypatch.setattr("helpers.runtime.environment.private_folder", lambda: tmp_path)
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
