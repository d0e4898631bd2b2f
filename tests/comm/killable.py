"""Ranks that a test may kill: plain processes, which only the test supervises."""

import multiprocessing
import os
import signal
import traceback

import torch
import torch.distributed as dist

PATIENCE = 30  # seconds of silence after which a rank counts as hanging

context = multiprocessing.get_context("forkserver")  # a clean process that imports torch only once
context.set_forkserver_preload(["tests.comm.killable", "helpers.comm.shared_memory.collectives"])


class Killable:
    """`size` processes that each call `body(rank, say, *args)` within a process group.

    `say(text)` sends a text to the test. At the end the process sends the result of the body, or
    its error. The test waits for the processes only at the end, so a dead process is a zombie until
    then.
    """

    def __init__(self, folder, size: int, body, *args):
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, theirs = context.Pipe()
            given = (rank, size, str(folder / "store"), theirs, body, args)
            self.processes.append(context.Process(target=run, args=given, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(pipe)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def hear(self, rank: int) -> str:
        """Return the next text from the rank."""
        assert self.pipes[rank].poll(PATIENCE), f"rank {rank} hangs"
        return self.pipes[rank].recv()

    def signal(self, rank: int, number: int = signal.SIGKILL):
        os.kill(self.processes[rank].pid, number)


def run(rank, size, store, pipe, body, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        pipe.send(body(rank, pipe.send, *args))
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    os._exit(0)
