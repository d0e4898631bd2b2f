"""Start ranks as torchrun does, without waiting for Python and torch: each is a fork.

    with Warm() as warm:
        run(script, 2, options, start=warm.start)

A server process imports torch once. For each rank it forks a process, which gets the variables that
torchrun sets, and runs the same `rank.py`. If a rank fails, the server ends the other ranks.

`warm.torchrun` starts torchrun itself in a fork; its ranks are forks again, by its own option.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback

from helpers.check.submission import job


class Warm:
    """A server process. It ends with its input, so also when this process is killed."""

    def __init__(self):
        self.server = subprocess.Popen(
            [*job.own_network(), sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=job.environment(), text=True,
            cwd=job.RANK.parents[3],
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()

    def torchrun(self, arguments, ranks, *, stdout, stderr, options=()) -> "Started":
        options = ["--standalone", f"--nproc-per-node={ranks}", *options]
        return self.start(arguments, ranks, stdout=stdout, stderr=stderr, torchrun=options)

    def start(self, arguments, ranks, *, stdout, stderr, torchrun=None) -> "Started":
        order = {"arguments": list(arguments), "ranks": ranks, "torchrun": torchrun}
        order |= {"stdout": stdout.name, "stderr": stderr.name}
        self.server.stdin.write(json.dumps(order, default=os.fsdecode) + "\n")
        self.server.stdin.flush()
        return Started(int(self.server.stdout.readline()), self.server)


class Started:
    """The part of a Popen that `job.run` uses."""

    def __init__(self, pid: int, server):
        self.pid, self.server, self.returncode = pid, server, None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.ask("poll")
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.005)
        return self.returncode

    def kill(self):
        self.ask("kill")

    def ask(self, what: str):
        self.server.stdin.write(json.dumps({"ask": what, "pid": self.pid}) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline().strip()
        self.returncode = None if answer == "None" else int(answer)


# ------------------------------------------------------------------------------- in the server


def serve():
    preload()
    for line in sys.stdin:
        order = json.loads(line)
        if "ask" not in order:
            pid = os.fork()
            if pid == 0:
                os._exit(torchrun(order) if order["torchrun"] else agent(order))
            answer = pid
        else:
            if order["ask"] == "kill":
                os.kill(order["pid"], signal.SIGTERM)
                answer = os.waitpid(order["pid"], 0)[1]
            else:
                done, status = os.waitpid(order["pid"], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if done else None
        print(answer, flush=True)


def preload():
    """Import what the scripts need, and make the first optimizer: that imports more."""
    import runpy
    from pathlib import Path

    import torch
    import torch.distributed.checkpoint._fsspec_filesystem
    import torch.distributed.run

    from helpers.models.config import GPTConfig

    for script in sorted(Path("notebooks/project").glob("*.py")):
        runpy.run_path(str(script), run_name="imported")
    torch.set_num_threads(1)
    GPTConfig(width=8, layers=1, heads=1).build(device="meta").to_empty(device="cpu")
    torch.optim.AdamW([torch.ones(1, requires_grad=True)]).step()


def torchrun(order) -> int:
    from torch.distributed import run

    write_to(order)
    program = [__file__, str(job.RANK), *order["arguments"]]
    try:
        run.main([*order["torchrun"], "--run-path", "--start-method=fork", *program])
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def be_rank_of_torchrun():
    """Run the program, without what an exec would not have left of torchrun's agent."""
    import runpy

    from helpers.resilience.crew import sockets

    for number in sockets().values():
        os.close(number)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


def agent(order) -> int:
    """Like torchrun: fork the ranks; return 0 if all end well, else end them all and return 1."""
    pids = {}
    signal.signal(signal.SIGTERM, lambda *_: os._exit(end(pids)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(order["ranks"]):
        pid = os.fork()
        if pid == 0:
            os._exit(be_rank(order, rank, port))
        pids[pid] = rank
    while pids:
        pid, status = os.wait()
        del pids[pid]
        if status:
            return end(pids)
    return 0


def end(pids) -> int:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return 1


def be_rank(order, rank: int, port: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order["ranks"]),
        "LOCAL_WORLD_SIZE": str(order["ranks"]), "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": f"warm-{port}",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip
    write_to(order)
    os.close(0)
    sys.argv = [str(job.RANK), *order["arguments"]]
    try:
        import runpy

        runpy.run_path(str(job.RANK), run_name="__main__")
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            traceback.print_exc()
            sys.stderr.flush()
            return 1
    sys.stdout.flush()
    return 0


def write_to(order):
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(order[name], os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))


if __name__ == "__main__":
    be_rank_of_torchrun() if "RANK" in os.environ else serve()
