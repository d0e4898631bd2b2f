"""A machine that lacks something: each call works, or ends with one plain sentence."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.runtime.local.forkserver import client

ROOT = Path(__file__).parents[3]

SCRIPT = """\
import os, stat, sys
from pathlib import Path
from helpers import launch
def deed(worker):
    print("err", file=sys.stderr)
    return worker.rank
if __name__ == "__main__":
    try:
        text = str(list(launch(deed, workers=3)))
        assert not stat.S_ISSOCK(os.fstat(2).st_mode), "the server reads what a library prints"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    open(sys.argv[1], "w").write(text)
"""
MANY = "This user may start no more processes or threads: end some, or raise `ulimit -u`."
UNPRIVILEGED = ["--inh-caps=-all", "--bounding-set=-sys_resource,-sys_admin", "prlimit"]
ODD = {
    "stdin and stderr are closed": (["sh", "-c", 'exec "$@" <&- 2>&-', "sh"], "[0, 1, 2]"),
    "all three are closed": (["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"], "[0, 1, 2]"),
    "no process left for the server": (
        ["setpriv", "--ruid", "54321", *UNPRIVILEGED, "--nproc=1"],
        MANY,
    ),
    "no process left for rank 2": (
        ["setpriv", "--ruid", "54322", *UNPRIVILEGED, "--nproc=5"],
        MANY,
    ),
    "no thread left for a rank": (
        ["setpriv", "--ruid", "54323", *UNPRIVILEGED, "--nproc=8"],
        MANY,
    ),
    "no /proc": (
        ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"],
        "rank 0 could not start: /proc is not mounted",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_script_on_an_odd_machine(case, tmp_path):
    before, expected = ODD[case]
    if before[0] != "sh" and subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip(f"needs the right to run {before[0]}")
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(SCRIPT)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [*before, sys.executable, str(script), str(answer)]
    subprocess.run(command, env=environ, capture_output=True, timeout=100, check=True)
    assert expected in answer.read_text()


@pytest.mark.parametrize("left", [0, 9, 21, 33, 39])
def test_few_descriptors_are_named_and_the_next_call_works(left):
    """In the notebook: at each place where a start opens one."""
    assert list(launch(lambda worker: worker.rank)) == [0, 1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = set(map(int, os.listdir("/proc/self/fd")))
    free = [fd for fd in range(max(opened) + left + 2) if fd not in opened][left]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(WorkerError, match="Too many open files") as caught:
            launch(lambda worker: worker.rank, workers=8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    advice = "A process may open no more files: close some, or raise `ulimit -n`."
    assert caught.value.note == advice
    del caught
    assert len(os.listdir("/proc/self/fd")) <= len(opened)
    assert list(launch(lambda worker: worker.rank)) == [0, 1]


def test_an_unknown_start_method_is_refused(monkeypatch):
    monkeypatch.setenv(client.START, "nonsense")
    with pytest.raises(ValueError, match='HELPERS_START is "fork" or "spawn", not \'nonsense\''):
        launch(lambda worker: None)
