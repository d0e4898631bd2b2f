"""Networks to try launchers in: what they listen on is reached from nowhere else.

A network lives as long as the process that holds it, and that one as long as this one: nothing has
to be cleaned up. On a system that lets no one make networks, one machine is this machine, and two
are not to be had.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "scripts" / "joins.py"
BIN = Path(sys.executable).parent
ADDRESSES = ("10.77.0.1", "10.77.0.2")
HOLD = "ip link set lo up && echo ready && exec cat"  # until its input is closed


class Machine:
    """A network of its own, with a loopback; several of one `owner` can be joined."""

    def __init__(self, owner: "Machine | None" = None):
        into = inside(owner.holder.pid) if owner else []
        unshare = ["unshare", "--net"] if owner else ["unshare", "--map-root-user", "--net"]
        self.holder = subprocess.Popen(
            [*into, *unshare, "sh", "-c", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.usable = self.holder.stdout.readline() == b"ready\n"

    def start(self, *command, **environ) -> subprocess.Popen:
        return start([*inside(self.holder.pid), *command], environ)

    def do(self, *command):
        subprocess.run([*inside(self.holder.pid), *command], check=True)

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()


class ThisMachine:
    """Where no networks can be made."""

    def start(self, *command, **environ) -> subprocess.Popen:
        return start(command, environ)

    def close(self):
        pass


def inside(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials"]


def start(command, environ) -> subprocess.Popen:
    """Its own session, so that `end` reaches whatever it starts. A value of None: not set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM", "PMI", "OMPI", "TORCHELASTIC")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
    return subprocess.Popen(
        [str(part) for part in command],
        env={name: value for name, value in {**clean, **own}.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def can_make_networks() -> bool:
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        return False
    machine = Machine()
    try:
        return machine.usable
    finally:
        machine.close()


def one_machine():
    return Machine() if can_make_networks() else ThisMachine()


def two_machines() -> list[Machine]:
    """Joined by a cable: `ADDRESSES`, on the interface `cable`."""
    first = Machine()
    second = Machine(owner=first)
    other = str(second.holder.pid)
    first.do("ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", other)
    for machine, address in zip((first, second), ADDRESSES, strict=True):
        machine.do("ip", "address", "add", f"{address}/24", "dev", "cable")
        machine.do("ip", "link", "set", "cable", "up")
    return [first, second]


def two_agents(pair: list[Machine], *command, options=(), **environ) -> list[subprocess.Popen]:
    """torchrun on each of two machines, a rank on each; rank 0 is on the one or the other."""
    meet = f"--rdzv-backend c10d --rdzv-endpoint {ADDRESSES[0]}:29400 --rdzv-id job --local-addr"
    torchrun = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", *options, *meet.split()]
    agents = []
    for machine, address in zip(pair, ADDRESSES, strict=True):
        # torchrun would find out by the machine's name, and the two have the same
        host = f"--rdzv-conf=is_host={int(address == ADDRESSES[0])}"
        agents.append(machine.start(*torchrun, address, host, *command, **environ))
    return agents


def finish(process: subprocess.Popen, seconds: float = 60) -> str:
    """What it printed, once it has ended; ended for it after so many seconds."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        end(process)
        raise AssertionError(
            f"no end after {seconds} s: {process.args}\n{process.communicate()[0]}"
        ) from None


def end(process: subprocess.Popen):
    """End it, and what it started; torchrun puts its ranks into sessions of their own."""
    import psutil

    try:
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            pass


def until(condition, seconds: float = 60):
    """Wait for it."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not within {seconds} s"
        time.sleep(0.05)
