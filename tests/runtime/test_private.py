"""The private folder."""

import os
import subprocess
import sys

from helpers.runtime.private import private_folder

PROGRAM = """
import os, sys
from helpers.runtime.private import private_folder
folder = private_folder()
print(folder)
(folder / "x").write_text("x")
if os.fork() == 0:
    assert private_folder() != folder
    sys.exit()  # runs what the parent registered for its own end
os.wait()
assert (folder / "x").exists()
"""


def test_only_its_user_can_enter():
    assert private_folder().stat().st_mode & 0o777 == 0o700
    assert private_folder().stat().st_uid == os.getuid()
    assert private_folder() is private_folder()


def test_gone_with_its_process_and_not_with_a_fork_of_it(tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert not list(tmp_path.iterdir())
