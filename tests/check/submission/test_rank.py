"""What a rank of a submitted script notes for the check, and how it ends on order."""

import json
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch

from helpers.check.submission import rank


def facts(folder, number=0):
    return [json.loads(line) for line in (folder / f"notes-{number}").read_text().splitlines()]


@pytest.fixture
def watched(tmp_path):
    (tmp_path / "watched").mkdir()
    return tmp_path / "watched"


@pytest.fixture
def notes(tmp_path, watched):
    made = rank.Notes(str(tmp_path), str(watched))
    yield made
    os.close(made.file)


def test_notes_are_of_this_rank_and_for_this_user_alone(tmp_path, watched, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    before = os.umask(0)
    try:
        for _ in range(2):  # a second run of the script adds to them
            os.close(rank.Notes(str(tmp_path), str(watched)).file)
    finally:
        os.umask(before)
    assert facts(tmp_path, 3) == 2 * [{"pid": os.getpid()}]
    assert (tmp_path / "notes-3").stat().st_mode & 0o777 == 0o600


def test_only_what_is_written_in_the_watched_folder_is_noted(tmp_path, watched, notes):
    (tmp_path / "link").symlink_to(watched)
    (tmp_path / "watched-too").mkdir()
    for path in (watched / "a", str(tmp_path / "link" / "b"), os.fsencode(watched / "in" / "c")):
        notes.wrote(path)
    for path in (watched, tmp_path / "watched-too" / "a", tmp_path / "a", 3, None):
        notes.wrote(path)
    assert facts(tmp_path)[1:] == [{"wrote": "a"}, {"wrote": "b"}, {"wrote": "in/c"}]


def test_the_watched_folder_may_be_a_link(tmp_path, watched):
    (tmp_path / "link").symlink_to(watched)
    made = rank.Notes(str(tmp_path), str(tmp_path / "link"))
    for path in (watched / "a", tmp_path / "link" / "b"):
        made.wrote(path)
    os.close(made.file)
    assert facts(tmp_path)[1:] == [{"wrote": "a"}, {"wrote": "b"}]


def test_files_opened_for_writing_and_the_new_names_of_renamed_ones(tmp_path, watched, notes):
    path = str(watched / "a")
    notes.hook("open", (path, "r", os.O_RDONLY | os.O_CLOEXEC))
    notes.hook("os.remove", (path, -1))
    assert facts(tmp_path)[1:] == []
    notes.hook("open", (path, "w", os.O_WRONLY | os.O_CREAT))
    notes.hook("open", (path + "+", "r+", os.O_RDWR))
    notes.hook("os.rename", (path, str(watched / "b"), -1, -1))
    assert facts(tmp_path)[1:] == [{"wrote": "a"}, {"wrote": "a+"}, {"wrote": "b"}]


def test_torch_s_own_writing_is_noted(tmp_path, watched, notes, monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)  # afterwards it is as before
    rank.note_saves(notes)
    torch.save([4], tmp_path / "elsewhere.pt", _use_new_zipfile_serialization=False)
    assert (tmp_path / "elsewhere.pt").read_bytes()[:2] != b"PK"
    torch.save([3], watched / "state.pt")
    assert torch.load(watched / "state.pt") == [3]
    assert facts(tmp_path)[1:] == [{"wrote": "state.pt"}]


@pytest.mark.parametrize(
    ("line", "step"),
    [('{"step": 4, "loss": 5.0}', 4), *((line, None) for line in ('{"saved": 4}', "[4]", "4", ""))],
)
def test_which_step_a_line_is_of(line, step):
    assert rank.step_of(line) == step


SCRIPT = """
import json, sys
assert __name__ == "__main__"
assert sys.stdout.encoding
for step in range(9):
    assert sys.stdout.write("between\\n") == 8
    sys.stdout.flush()
    print(json.dumps({"step": step}), end="")
    print()
with open(sys.argv[1], "wb") as file:
    file.write(bytes(3000))
print(sys.argv[0], sys.path[0])
"""


def ended(tmp_path, watched, **orders) -> tuple[int, list[str]]:
    """How a rank with this script ends, and the lines that it printed."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    orders = {"kill_at_step": None, "file_bytes": None} | orders
    orders |= {"notes": str(tmp_path), "watch": str(watched)}
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.stdout = os.fdopen(out, "w")
            sys.path.insert(0, "a folder that the script does not get")
            rank.main(json.dumps(orders), str(script), str(watched / "file"))
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(out)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, (tmp_path / "out").read_text().splitlines()


def test_a_script_runs_as_if_it_were_started_alone(tmp_path, watched):
    code, lines = ended(tmp_path, watched)
    assert (code, len(lines)) == (0, 19)
    assert lines[-1] == f"{tmp_path / 'script.py'} {tmp_path}"
    pid, *rest = facts(tmp_path)
    assert pid.keys() == {"pid"}
    assert rest == [{"wrote": "file"}]


SILENT = """
import os, resource, signal, threading
def waits():
    os.kill(os.getpid(), signal.SIGUSR1)
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
waits()
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
"""


def test_a_rank_that_is_asked_where_it_is_prints_its_stack(tmp_path, watched, capfd, monkeypatch):
    """Of its main thread, down to the script; and a rank that is killed leaves no core."""
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", SILENT)
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        assert ended(tmp_path, watched, file_bytes=10**6) == (0, ["0"])
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    first, inner, outer, below, *_ = capfd.readouterr().err.splitlines()
    assert first.startswith("Stack (most recent call first)")
    assert inner.endswith('script.py", line 4 in waits')
    assert outer.endswith('script.py", line 7 in <module>')
    assert "<frozen runpy>" in below


def test_it_ends_after_the_line_of_a_step(tmp_path, watched):
    code, lines = ended(tmp_path, watched, kill_at_step=2)
    assert code == -signal.SIGKILL
    assert [json.loads(line) for line in lines[1::2]] == [{"step": step} for step in range(3)]


TOGETHER = """
import sys
sys.stdout.write('{"step": 1}\\n{"step": 2}\\nafter\\n')
print("too late")
"""


def test_it_ends_after_several_lines_at_once(tmp_path, watched, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", TOGETHER)
    code, lines = ended(tmp_path, watched, kill_at_step=2)
    assert (code, lines) == (-signal.SIGKILL, ['{"step": 1}', '{"step": 2}', "after"])


def test_it_ends_in_the_write_that_makes_a_file_too_long(tmp_path, watched):
    code, _ = ended(tmp_path, watched, file_bytes=2000)
    assert code == -signal.SIGXFSZ
    assert Path(watched, "file").stat().st_size == 2000
