"""How a script is started, ended and read: the launcher is a small shell script here."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from helpers.check.submission import job, rank

pytestmark = pytest.mark.timeout(100)  # a script that nobody ends sleeps for a minute

# A rank in a session of its own, which only SIGKILL ends. It writes its number into its notes.
RANK = """export N
setsid sh -c 'trap "" USR1 TERM; echo "{\\"pid\\": $$}" > $N/notes-0; exec sleep 60' &
while ! [ -s $N/notes-0 ]; do sleep 0.02; done
exec sleep 60
"""


def shell(script, seen=None):
    """A launcher that runs this script; $N is the folder of notes."""

    def start(arguments, ranks, *, stdout, stderr):
        if seen is not None:
            seen.append((arguments, ranks))
        notes = json.loads(arguments[0])["notes"]
        return subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            env={**os.environ, "N": notes},
        )  # fmt: skip

    return start


def run(script, tmp_path, **options) -> job.Result:
    return job.run(Path("mine.py"), 2, {"folder": tmp_path}, start=shell(script), **options)


def test_the_script_gets_its_orders_and_options(tmp_path):
    seen = []
    options = {"save_every": 4, "folder": tmp_path}
    job.run(Path("mine.py"), 3, options, kill_at_step=6, file_bytes=7, start=shell("", seen))
    (((orders, *arguments), ranks),) = seen
    assert arguments == ["mine.py", "--save-every=4", f"--folder={tmp_path}"]
    assert ranks == 3
    orders = json.loads(orders)
    assert os.stat(orders.pop("notes")).st_mode & 0o077 == 0
    assert orders == {"watch": str(tmp_path), "kill_at_step": 6, "file_bytes": 7}


def test_what_it_leaves_behind(tmp_path):
    found = run(
        """cat <<'END'
{"step": 4, "loss": 5}
{"step": 5, "loss": 4.5}
{"step": 5, "loss": 4.25}
{"step": 4, "loss": 5.0}
{"step": true, "loss": 4.0}
{"step": 6, "loss": true}
{"saved": 8}
{"saved": 8}
{"saved": true}
{"rank": 1, "bytes": {"parameters": 3, "name": "x", "same": true}}
not JSON
{"rank": true, "bytes": {}}
{"rank": 2, "bytes": 3}
{"rank": 0, "bytes": {"parameters": 2.5}, "saved": 9.0}
[1]
END
printf '\\377\\n{"saved": 9}\\n\\377'
echo oops >&2
printf '\\377' >&2
echo '{"wrote": "a"}' > $N/notes-0
echo '{"wrote": "a"}' > $N/notes-12
exit 3""",
        tmp_path,
    )
    assert (found.losses, found.first, found.twice) == ({4: 5.0, 5: 4.25}, 4, 5)
    assert (found.saved, found.held) == ([8, 8, 9], {1: {"parameters": 3}, 0: {"parameters": 2.5}})
    assert found.writers == {"a": {0, 12}}
    assert (found.code, found.hung, found.errors) == (3, False, "oops\n\ufffd")


def test_silence_is_a_hang_and_no_rank_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "LET_WRITE", 0.1)
    began, seen = time.monotonic(), []
    options = {"folder": tmp_path}
    found = job.run(Path("mine.py"), 1, options, start=shell(RANK, seen), patience=0.3)
    assert found.hung
    assert time.monotonic() - began < 30
    (fact,) = job.lines_of(Path(json.loads(seen[0][0][0])["notes"], "notes-0"))
    while not has_ended(fact["pid"]):
        assert time.monotonic() - began < 40
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_silent_rank_is_asked_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "LET_WRITE", 0.1)
    script = "trap 'echo stack >&2' USR1; echo '{\"pid\": '$$'}' > $N/notes-0; "
    found = run(script + "while :; do sleep 0.02; done", tmp_path, patience=0.3)
    assert found.errors == "stack\n"


def test_a_rank_that_has_ended_does_not_keep_the_signal_from_the_others(tmp_path):
    gone, there = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "30"])
    gone.wait()
    for number, process in enumerate((gone, there)):
        (tmp_path / f"notes-{number}").write_text(f'{{"wrote": "a"}}\n{{"pid": {process.pid}}}')
    job.send(tmp_path, signal.SIGTERM)
    assert there.wait() == -signal.SIGTERM


def test_a_sign_of_life_is_enough(tmp_path):
    found = run("for k in 1 2 3 4 5; do echo $k; sleep 0.2; done", tmp_path, patience=0.8)
    assert not found.hung


def test_the_ranks_get_no_variable_of_another_launcher(monkeypatch, tmp_path):
    monkeypatch.setattr(job.sys, "path", ["", str(tmp_path)])
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "GROUP_RANK",
             "ROLE_RANK", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")  # fmt: skip
    for name in names:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("OWN", "kept")
    found = job.environment()
    assert "7" not in found.values()
    assert found["OMP_NUM_THREADS"] == found["PYTHONDONTWRITEBYTECODE"] == "1"
    assert (found["OWN"], found["CUDA_VISIBLE_DEVICES"]) == ("kept", "")
    paths = found["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(Path(job.__file__).parents[3])
    assert str(tmp_path) in paths
    assert "" not in paths


LAUNCHER = """#!/bin/sh
[ "$2" = helpers.runtime.alone ] && { echo refused; echo refused >&2; exit $REFUSED; }
echo "$@"
echo "$INNER $CUDA_VISIBLE_DEVICES-" >&2
read line || echo "no input"
"""


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A program in the place of Python: it prints what it is asked for."""
    program = tmp_path / "python"
    program.write_text(LAUNCHER)
    program.chmod(0o755)
    monkeypatch.setattr(job.sys, "executable", str(program))
    return str(program)


def test_torchrun_starts_a_program_on_each_rank(launcher, monkeypatch):
    monkeypatch.setattr(job, "own_network", lambda: ("env", "INNER=yes"))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = job.by_torchrun(["orders", "mine.py", "--a=3"], 3, **streams)
    assert os.getsid(process.pid) == process.pid  # what the terminal sends does not reach it
    out, errors = process.communicate()
    asked, *rest = out.splitlines()
    options = "-m torch.distributed.run --standalone --nproc-per-node=3"
    assert asked == f"{options} {rank.__file__} orders mine.py --a=3"
    assert rest == ["no input"]
    assert errors == "yes -\n"
