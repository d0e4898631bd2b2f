"""Edited files and new variables, seen by ranks that live on."""

import importlib
import os
import sys
import threading
import time
import types

import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.launch import launch
from helpers.runtime.local import sources
from helpers.runtime.local.sources import SourceFiles


@pytest.fixture
def module(tmp_path, monkeypatch):
    file = tmp_path / "students_own.py"
    file.write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield file
    sys.modules.pop("students_own", None)


def read(worker):
    import students_own

    return students_own.value


def test_an_edited_file_is_told_once(module, capsys):
    with Cluster(2) as cluster:
        assert list(cluster.run(read)) == [1, 1]
        cluster.run(read)
        assert capsys.readouterr().out == ""
        module.write_text("value = 2  # edited\n")
        assert list(cluster.run(read)) == [1, 1]
        out = capsys.readouterr().out
        assert out.count("students_own.py changed since these ranks imported it") == 1
        assert list(cluster.run(read)) == [1, 1]
        assert capsys.readouterr().out == ""
        cluster.close()
        assert list(cluster.run(read)) == [2, 2]
        assert capsys.readouterr().out == ""


def test_a_file_edited_after_this_process_imported_it_is_told_once(module, capsys):
    import students_own

    with Cluster(1) as cluster:
        cluster.run(lambda worker: None)
        assert capsys.readouterr().out == ""
        module.write_text("value = 2  # edited\n")
        assert launch(read, 1)[0] == 2  # new ranks read the disk
        assert students_own.value == 1
        out = capsys.readouterr().out
        assert out.count("students_own.py changed since this process imported it") == 1
        assert "Restart the kernel" in out
        launch(read, 1)
        assert capsys.readouterr().out == ""


def test_a_module_that_was_reloaded_is_not_old(module, capsys):
    import students_own

    launch(read, 1)
    module.write_text("value = 2  # edited\n")
    importlib.reload(students_own)
    launch(read, 1)
    assert capsys.readouterr().out == ""
    module.write_text("value = 3  # edited once more\n")
    launch(read, 1)
    assert "students_own.py changed since this process" in capsys.readouterr().out


def test_a_change_in_the_same_second_or_of_the_same_length_is_a_change(module):
    os.utime(module, ns=(0, 5_000_000_000))
    import students_own

    files = SourceFiles(every=True)
    files.look()
    assert files.changed() == []
    for value, moment in ((2, 5_001_000_000), (20, 5_001_000_000)):  # another moment; as many bytes
        module.write_text(f"value = {value}\n")
        os.utime(module, ns=(0, moment))
        assert files.changed() == [students_own.__file__]
    assert files.changed() == []
    module.unlink()  # editors do this for a moment
    assert files.changed() == []


def test_threads_may_look_at_the_same_time(tmp_path, monkeypatch):
    """As those of a task farm, while one of them imports."""
    files, errors = SourceFiles(every=True), []
    files.seen = {f"{tmp_path}/{n}.py": None for n in range(200)}
    monkeypatch.setattr(sources, "state_of", lambda file: time.sleep(0))

    def work(number):
        try:
            for n in range(20):
                files.seen[f"{number}-{n}"] = None
                files.changed()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_only_files_that_a_person_may_edit_are_watched(tmp_path, monkeypatch):
    """From the start of the watch on; neither Python's own, nor those of installed packages."""
    before = SourceFiles()
    before.look()
    assert before.seen == {}
    every = SourceFiles(every=True)
    every.look()
    assert sources.__file__ in every.seen
    assert not {os.__file__, pytest.__file__} & set(every.seen)
    paths = [tmp_path / "own.py", tmp_path / "dist-packages" / "theirs.py", tmp_path / "gone.py"]
    for number, path in enumerate([None, *paths]):
        module = types.SimpleNamespace(__file__=path and str(path))
        monkeypatch.setitem(sys.modules, f"a_module_{number}", module)
    paths[0].touch()
    before.look()
    assert before.seen == {str(paths[0]): sources.state_of(paths[0]), str(paths[2]): None}
    monkeypatch.setitem(sys.modules, "a_module_9", types.SimpleNamespace(__file__=str(paths[0])))
    before.seen.clear()
    before.look()  # each is looked at once
    assert list(before.seen) == [str(paths[0])]
