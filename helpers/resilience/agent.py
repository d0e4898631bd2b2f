"""Start ranks on this machine that may die one by one, and tell the others which have ended.

torchrun's agent ends all ranks when one fails. This one goes on, and serves the store in which the
ranks meet, on the loopback. (A file would not do: a rank that is stopped while it holds the file's
lock would stop all.)
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist

from helpers.resilience.crew import GONE
from helpers.runtime.joined.rendezvous import listen


class Agent:
    """The parent of ranks, each a fork of this process with one thread.

    The process must have no process group, and must not have run a backward.

    Args:
        body: `body(store, name)` is a rank; what it returns must have a form in JSON.

    Attributes:
        running: name of a rank -> its process, while it runs.
        codes: name -> how the rank ended: its exit code, or minus the signal.
    """

    def __init__(self, body: Callable[[dist.Store, int], object]):
        listening = listen("127.0.0.1", 0)
        self.body, self.port = body, listening.getsockname()[1]
        options = {"is_master": True, "wait_for_workers": False}
        options["master_listen_fd"] = listening.detach()
        self.store = dist.TCPStore("127.0.0.1", self.port, **options)
        self.running: dict[int, int] = {}
        self.codes: dict[int, int] = {}

    def start(self) -> int:
        """Start one more rank; return its name."""
        name = len(self.running) + len(self.codes)
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            os._exit(self.be(name))
        self.running[name] = pid
        return name

    def be(self, name: int) -> int:
        torch.set_num_threads(1)  # the ranks share the cores
        try:
            store = dist.TCPStore("127.0.0.1", self.port, wait_for_workers=False)
            store.set(f"result/{name}", json.dumps(self.body(store, name)))
            return 0
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()

    def look(self) -> bool:
        """Report ranks that have ended; call it often. Returns whether one still runs."""
        for name, pid in list(self.running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.codes[name] = os.waitstatus_to_exitcode(status)
                del self.running[name]
                self.store.append(GONE, f"{name},")
        return bool(self.running)

    def results(self) -> dict[int, object]:
        """What the ranks have returned, by name."""
        ended = {name: f"result/{name}" for name in sorted(self.codes)}
        kept = {name: key for name, key in ended.items() if self.store.check([key])}
        return {name: json.loads(self.store.get(key)) for name, key in kept.items()}

    def close(self):
        """Kill what still runs: a rank that is stopped, for example."""
        for pid in self.running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
