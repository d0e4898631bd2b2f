import multiprocessing
import os
import stat

import pytest

from helpers.data.cache import cache_folder, kept


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_this_users_alone(own_cache):
    assert cache_folder() == own_cache
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o700


def test_without_the_variable_it_is_where_caches_are(tmp_path, monkeypatch):
    monkeypatch.delenv("HELPERS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "training-at-scale"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "training-at-scale"


def test_an_entry_is_written_once(own_cache):
    calls = []

    def write(folder):
        calls.append(folder)
        (folder / "x").write_text("1")

    assert kept("a") is None
    assert kept("a", write) == kept("a", write) == kept("a") == own_cache / "a"
    assert (own_cache / "a" / "x").read_text() == "1"
    assert len(calls) == 1


def test_an_entry_that_fails_leaves_nothing(own_cache):
    def write(folder):
        (folder / "x").write_text("half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        kept("a", write)
    assert list(own_cache.iterdir()) == []
    assert kept("a") is None


def _make(barrier, results):
    def write(folder):
        (folder / "owner").write_text(str(os.getpid()))
        barrier.wait(30)  # all have begun: none may find the entry made

    results.put((kept("a", write) / "owner").read_text())


def test_processes_that_make_it_at_once_agree(own_cache):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_make, args=(barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    owners = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert len(set(owners)) == 1
    assert [entry.name for entry in own_cache.iterdir()] == ["a"]


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match="file") as caught:
        cache_folder()
    assert caught.value.__notes__ == [
        "to keep tokens elsewhere, set HELPERS_CACHE to a folder of yours"
    ]


def test_anothers_folder_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user: set HELPERS_CACHE"):
        cache_folder()


def test_an_entry_that_cannot_be_put_in_its_place_is_no_entry():
    (cache_folder() / "a").write_text("a file stands in the way")
    with pytest.raises(OSError, match="a"):
        kept("a", lambda folder: (folder / "x").write_text("1"))
    assert [entry.name for entry in cache_folder().iterdir()] == ["a"]
