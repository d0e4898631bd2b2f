"""Files that other users own, or can change, are refused."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helpers.runtime import private
from helpers.runtime.local import network
from helpers.runtime.local.forkserver.orphans import C
from helpers.runtime.private import (
    NOBODY,
    anonymous_file,
    below,
    cache_folder,
    check_own,
    is_own,
    private_folder,
)

PR_SET_DUMPABLE = 4
USER = 54321  # an ordinary user that owns nothing on this machine


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o400, 0o755])
def test_what_only_this_user_can_change_is_fine(file, mode):
    file.chmod(mode)
    check_own([file])


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(PermissionError) as caught:
        check_own([file.parent, file], "Or ask for help.")
    assert str(caught.value) == (
        f"{file} can be written by other users, so this user's programs do not read it. "
        f"If only you have written it: chmod -R go-w {file}. Or ask for help."
    )


def test_the_target_of_a_link_counts(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    check_own([link])
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="link can be written"):
        check_own([link])


def test_of_others_only_root_is_trusted(file, monkeypatch):
    me = file.stat().st_uid
    real = os.stat

    def owned_by(uid):
        def changed(path, **_):
            fields = list(real(path))
            fields[stat.ST_UID] = uid
            return os.stat_result(fields)

        return changed

    monkeypatch.setattr(os, "stat", owned_by(0))
    check_own([file])
    monkeypatch.setattr(os, "stat", owned_by(me + 7))
    with pytest.raises(PermissionError, match=r"belongs to another user.* Use a file of your own"):
        check_own([file])


def test_advice_fits_a_folder_that_all_users_share(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(PermissionError, match=r"make a folder of your own in it") as caught:
        check_own([tmp_path])
    assert "chmod" not in str(caught.value)


@pytest.fixture
def shared_folder():
    """A folder that every user can enter; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_user(user: int, paths, own_network: bool) -> list[str]:
    """What `check_own` says of each path, asked by that user; "" if it accepts the path."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            if own_network:
                C.prctl(PR_SET_DUMPABLE, 1)  # setuid closed this process's files in /proc
                network.make()
            answers = [answer(path) for path in paths]
            os.write(write, "\n".join(answers).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    answers = text.split("\n")
    assert all(text.endswith(WAY_OUT) for text in answers if text)
    return answers


WAY_OUT = "Or leave."


def answer(path) -> str:
    try:
        check_own([path], WAY_OUT)
    except PermissionError as error:
        return str(error)
    return ""


only_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="becomes other users"
)
own_network = pytest.mark.skipif(
    sys.platform != "linux" or not network.possible(), reason="no networks can be made here"
)


def files_of(folder: Path, user: int) -> list[Path]:
    """Files of this user, of root, of another user; and of this user and root, open to all."""
    another = NOBODY if user == USER else USER
    owners = {"mine": user, "roots": 0, "others": another, "everyones": user, "open": 0}
    for name, owner in owners.items():
        path = folder / name
        path.write_text("x")
        path.chmod(0o666 if name in ("everyones", "open") else 0o644)
        os.chown(path, owner, owner)
    return [folder / name for name in owners]


def refuses_what_all_can_write(everyones: str, open_: str) -> bool:
    """Only the owner can run chmod."""
    both = all("can be written by other users" in text for text in (everyones, open_))
    return both and "chmod -R go-w" in everyones and "chmod" not in open_


@only_root
@pytest.mark.parametrize("user", [USER, NOBODY])
def test_an_ordinary_user_trusts_root_and_no_other(shared_folder, user):
    mine, roots, others, *writable = as_user(user, files_of(shared_folder, user), False)
    assert (mine, roots) == ("", "")
    assert "others belongs to another user" in others
    assert refuses_what_all_can_write(*writable)


@only_root
@own_network
@pytest.mark.parametrize("user", [USER, NOBODY])
def test_in_the_ranks_network_an_ordinary_user_trusts_its_own_files_alone(shared_folder, user):
    """There Linux shows `nobody` as the owner of root's files and of another user's."""
    paths = files_of(shared_folder, user)
    mine, roots, others, *writable, shared = as_user(user, [*paths, "/tmp"], True)
    assert mine == ""
    for text in (roots, others):
        assert "belongs to root or to another user" in text
        assert "launch(…, network=True)" in text
    assert refuses_what_all_can_write(*writable)
    assert "/tmp can be written by other users" in shared
    assert "make a folder of your own in it" in shared


def test_where_the_system_does_not_tell_all_owners_are_shown(monkeypatch):
    """macOS has no user namespaces."""
    monkeypatch.setattr(private, "Path", lambda _: Path("/none/such"))
    assert not private.hides_owners()


def test_below_is_all_of_a_tree(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("")
    found = {str(path.relative_to(tmp_path)) for path in below(tmp_path)}
    assert found == {".", "a", "a/b", "a/b/c"}


def test_a_relative_cache_home_does_not_count(tmp_path, monkeypatch):
    """As its specification has it; else each working folder would have a cache."""
    monkeypatch.delenv("HELPERS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "training-at-scale"
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def test_below_a_link_counts_only_if_it_leads_somewhere(tmp_path, file):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "good").symlink_to(file)
    (folder / "bad").symlink_to(tmp_path / "none")
    assert sorted(below(folder)) == [folder, folder / "good"]


def test_the_cache_is_where_the_reader_wants_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "of" / "mine"))
    assert cache_folder() == tmp_path / "of" / "mine"
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("HELPERS_CACHE", "")
    assert cache_folder() == tmp_path / "caches" / "training-at-scale"
    cache_folder().chmod(0o770)
    with pytest.raises(PermissionError, match=r"Or set HELPERS_CACHE to a folder of yours\.$"):
        cache_folder()


def test_a_cache_that_cannot_be_made_is_told_with_a_way_out(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(NotADirectoryError) as caught:
        cache_folder()
    assert "Set HELPERS_CACHE to a folder of yours" in caught.value.__notes__[0]


def test_every_path_is_looked_at_and_must_be_there(file, tmp_path):
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError):
        check_own([file, other])
    other.touch()
    other.chmod(0o602)
    with pytest.raises(PermissionError, match="other can be written"):
        check_own([file, other])


PROGRAM = """
import os, sys
from helpers.runtime.private import private_folder
folder = private_folder()
print(folder)
(folder / "x").write_text("x")
if os.fork() == 0:
    assert private_folder() != folder
    sys.exit()  # runs what the parent registered for its own end
assert os.wait()[1] == 0
assert (folder / "x").exists()
"""


def test_only_its_user_can_enter():
    assert private_folder().stat().st_mode & 0o777 == 0o700
    assert private_folder().stat().st_uid == os.getuid()
    assert private_folder() is private_folder()


@pytest.mark.parametrize(
    ("mode", "own"), [(0o700, True), (0o500, True), (0o710, False), (0o740, False), (0o701, False)]
)
def test_a_folder_that_others_can_enter_is_not_own(tmp_path, mode, own):
    tmp_path.chmod(mode)
    assert is_own(tmp_path.stat()) == own
    tmp_path.chmod(0o700)


def test_a_folder_of_another_user_is_not_own(tmp_path, monkeypatch):
    status = tmp_path.stat()
    monkeypatch.setattr(os, "geteuid", lambda: status.st_uid + 7)
    assert not is_own(status)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_file_without_a_name_lives_as_long_as_its_descriptor(in_memory, monkeypatch):
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    file = anonymous_file()
    try:
        os.pwrite(file, b"abc", 0)
        assert os.pread(file, 9, 0) == b"abc"
        assert os.fstat(file).st_nlink == 0
    finally:
        os.close(file)


def test_gone_with_its_process_and_not_with_a_fork_of_it(tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_folder_that_someone_has_removed_is_made_again():
    first = private_folder()
    shutil.rmtree(first)
    second = private_folder()
    assert second.is_dir()
    assert second == private_folder() != first
