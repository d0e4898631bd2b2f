"""The private folder."""

import os
import shutil
import subprocess
import sys

import pytest

from helpers.runtime.private import anonymous_file, is_own, private_folder

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
