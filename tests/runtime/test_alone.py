"""A program in a network of its own, from the command line."""

import os
import subprocess
import sys
import time

import pytest

from helpers.runtime import alone
from helpers.runtime.local import network
from tests.runtime.strangers import listening

own_network = pytest.mark.skipif(
    sys.platform != "linux" or not network.possible(), reason="no networks can be made here"
)
LOOK = "import os; print(os.readlink('/proc/self/ns/net'), os.getuid(), *os.sys.argv[1:])"


def run(*command):
    line = [sys.executable, "-m", "helpers.runtime.alone", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@own_network
def test_it_has_another_network_and_the_same_user():
    done = run(sys.executable, "-c", LOOK, "--standalone", "a b")
    assert done.returncode == 0, done.stderr
    net, user, *rest = done.stdout.split(maxsplit=3)
    assert net != os.readlink("/proc/self/ns/net")
    assert (int(user), rest) == (os.getuid(), ["--standalone", "a b\n"])


@own_network
def test_its_loopback_is_up():
    talk = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    talk += "socket.create_connection(s.getsockname()); print('reached')"
    assert run(sys.executable, "-c", talk).stdout == "reached\n"


@own_network
def test_exit_codes_are_the_programs():
    assert run(sys.executable, "-c", "raise SystemExit(3)").returncode == 3
    done = run("no-such-program")
    assert (done.returncode, done.stderr.strip()) == (
        127,
        "alone: no-such-program: No such file or directory",
    )


@own_network
def test_the_store_of_torchrun_shows_to_nobody_else(tmp_path):
    """torchrun listens on all interfaces, and what its store holds is unpickled by the ranks."""
    script = tmp_path / "wait.py"
    script.write_text(f"""
import pathlib, time
here = pathlib.Path({str(tmp_path)!r})
(here / "ready").touch()
while not (here / "go on").exists():
    time.sleep(0.01)
""")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command = [sys.executable, "-m", "helpers.runtime.alone", *torchrun, str(script)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            limit = time.monotonic() + 100
            while not (tmp_path / "ready").exists():
                assert process.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.05)
            assert listening(process.pid, process.pid)  # it does listen, in its own network
            assert not listening(process.pid, "self")
        finally:
            (tmp_path / "go on").touch()
    assert process.returncode == 0


def test_where_it_cannot_be_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(network, "possible", lambda: False)
    assert alone.main(["torchrun"]) == 126
    said = capsys.readouterr().err
    assert f"alone: torchrun was not started, because this system lets user {os.geteuid()}" in said
    for arguments in ([], ["--help"]):
        assert alone.main(arguments) == 2
        assert capsys.readouterr().err == f"{alone.USAGE}\n"
