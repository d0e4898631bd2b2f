import multiprocessing
import os

import pytest

from helpers.data.cache import kept
from helpers.runtime.private import cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_is_written_once(own_cache):
    calls = []

    def write(folder):
        calls.append(folder)
        (folder / "x").write_text("1")

    assert kept("a") is None
    assert kept("a", write) == kept("a", write) == kept("a") == own_cache / "a"
    assert (own_cache / "a" / "x").read_text() == "1"
    assert len(calls) == 1
    assert calls[0].parent == own_cache  # of one file system: a rename there is atomic
    assert calls[0].name.startswith(".")


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


def test_a_folder_without_room_says_what_to_do(own_cache, monkeypatch):
    def full(**options):
        assert options["dir"] == own_cache
        raise OSError("no space left")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(OSError, match="no space left") as caught:
        kept("a", write_x)
    assert caught.value.__notes__ == [
        "Set HELPERS_CACHE to a folder of yours: computed files are kept there."
    ]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_is_refused(own_cache, mode):
    kept("a", write_x)
    own_cache.chmod(mode)
    with pytest.raises(
        PermissionError, match=r"can be written by other users.*(chmod -R go-w|of your own)"
    ):
        kept("a")
    with pytest.raises(PermissionError, match="set HELPERS_CACHE to a folder of yours"):
        kept("b", write_x)
    assert [path.name for path in own_cache.iterdir()] == ["a"]


def write_x(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "x").write_text("1")


@pytest.mark.parametrize("part", ["a", "a/deep", "a/deep/x"])
def test_an_entry_that_others_can_write_is_not_read(own_cache, part):
    kept("a", write_x)
    (own_cache / part).chmod(0o777)
    with pytest.raises(PermissionError) as caught:
        kept("a", write_x)
    assert str(own_cache / part) in str(caught.value)
    assert str(caught.value).endswith(
        f"Or remove {own_cache / 'a'}: the next call computes it again."
    )


def test_a_generous_umask_opens_no_entry(own_cache):
    before = os.umask(0)
    try:
        kept("a", write_x)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in sorted((own_cache / "a").rglob("*"))]
    assert modes == [0o755, 0o644]
    assert kept("a") == own_cache / "a"


def test_an_entry_that_cannot_be_put_in_its_place_is_no_entry():
    (cache_folder() / "a").write_text("a file stands in the way")
    with pytest.raises(OSError, match="a"):
        kept("a", lambda folder: (folder / "x").write_text("1"))
    assert [entry.name for entry in cache_folder().iterdir()] == ["a"]
