"""A rank ends as Python ends: what a function leaves for the end is done."""

import atexit
import os
import threading
import time

import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.rank import ending


def test_files_left_open_are_written(tmp_path):
    modes = ("w", "wb", "w+b", "a")

    def write(worker):
        global kept
        kept = [(tmp_path / f"{worker.rank}{mode}").open(mode) for mode in modes]
        for file, mode in zip(kept, modes, strict=True):
            file.write("words" if "b" not in mode else b"words")

    launch(write)
    assert [(tmp_path / f"{r}{mode}").read_text() for r in (0, 1) for mode in modes] == 8 * [
        "words"
    ]


def test_after_each_call_of_a_cluster(tmp_path):
    def write(worker, words):
        if not hasattr(worker.state, "file"):
            worker.state.file = open(tmp_path / "file.txt", "w")  # noqa: SIM115
        worker.state.file.write(words)

    with Cluster(1) as cluster:
        cluster.run(write, words="first ")
        assert (tmp_path / "file.txt").read_text() == "first "
        cluster.run(write, words="second")
        assert (tmp_path / "file.txt").read_text() == "first second"


def test_before_an_error(tmp_path):
    def write(worker):
        global kept
        kept = open(tmp_path / "file.txt", "w")  # noqa: SIM115
        kept.write("words")
        raise ValueError("so")

    with pytest.raises(WorkerError, match="so"):
        launch(write, workers=1)
    assert (tmp_path / "file.txt").read_text() == "words"


def test_exit_functions_run_and_what_they_print_is_shown(tmp_path, capsys):
    def register(worker):
        import atexit

        global kept
        kept = open(tmp_path / f"{worker.rank}.txt", "w")  # noqa: SIM115
        atexit.register(kept.write, "at the end")
        atexit.register(print, "the end of rank", worker.rank)
        atexit.register((tmp_path / f"{worker.rank}").write_text, "ended")

    launch(register)
    out = capsys.readouterr().out
    assert "[rank 0] the end of rank 0" in out
    assert "[rank 1] the end of rank 1" in out
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["ended"] * 2
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["at the end"] * 2


def test_threads_are_waited_for(tmp_path):
    def begin(worker):
        def late():
            time.sleep(0.5)
            (tmp_path / "late").write_text("done")

        threading.Thread(target=late).start()

    launch(begin, workers=1)
    assert (tmp_path / "late").read_text() == "done"


def test_an_end_that_never_comes_is_cut_short(monkeypatch):
    monkeypatch.setattr("helpers.runtime.local.forkserver.processes.RELEASE_SECONDS", 0.5)

    def begin(worker):
        threading.Thread(target=time.sleep, args=(300,)).start()

    began = time.monotonic()
    launch(begin, workers=1)
    assert time.monotonic() - began < 30
    assert list(launch(lambda worker: worker.rank)) == [0, 1]


def test_nothing_left_is_not_waited_for():
    """A call that leaves nothing for the end returns before its ranks are gone."""

    def linger(worker):
        import os

        # What is kept for the next call is no reason to wait.
        worker.state.held = os.getpid()
        return os.getpid()

    cluster = Cluster(1)
    cluster.run(linger)
    assert not cluster.processes.later
    cluster.close()


def test_only_files_on_disk_that_are_open_for_writing_have_buffers_to_write(tmp_path):
    path = tmp_path / "file"
    reading, writing = os.pipe()
    opened = {"write": path.open("w"), "append": path.open("ab"), "both": path.open("r+")}
    opened |= {"read": path.open(), "gone": (tmp_path / "gone").open("w")}
    (tmp_path / "gone").unlink()
    found = {name: ending.writes_to_disk(file.fileno()) for name, file in opened.items()}
    right = {"write": True, "append": True, "both": True, "read": False, "gone": False}
    assert found == right
    assert not ending.writes_to_disk(writing)
    for file in opened.values():
        file.close()
    os.close(reading)
    os.close(writing)
    assert not ending.writes_to_disk(writing)


def test_exit_functions_of_before_are_not_the_functions_own(monkeypatch):
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    monkeypatch.setattr(ending, "_before", atexit._ncallbacks())
    atexit.register(print)
    try:
        assert ending.something_left()
        ending.begin()
        assert not ending.something_left()
    finally:
        atexit.unregister(print)


@pytest.mark.parametrize("daemon", [True, False])
def test_a_daemon_is_nothing_left(daemon, monkeypatch):
    thread = threading.Thread(target=print, daemon=daemon)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), thread])
    monkeypatch.setattr(ending, "_before", atexit._ncallbacks())
    assert ending.something_left() != daemon


def test_what_cannot_be_written_keeps_nothing_else_from_it(tmp_path, monkeypatch):
    """Files that are closed or detached, a pipe that nobody reads, a file that is only read."""
    reading, writing = os.pipe()
    os.close(reading)
    opened = [(tmp_path / "closed").open("w"), (tmp_path / "detached").open("w")]
    opened[0].close()
    bare = opened[1].detach()
    opened += [open(writing, "w"), (tmp_path / "closed").open()]  # noqa: SIM115
    opened.append((tmp_path / "last").open("w"))
    for file in opened[2::2]:
        file.write("words")
    monkeypatch.setattr(ending.gc, "get_objects", lambda: opened)
    ending.write_files()
    assert (tmp_path / "last").read_text() == "words"
    for file in (*opened[3:], bare):
        file.close()
    with pytest.raises(BrokenPipeError):
        opened[2].close()
