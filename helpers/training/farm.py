"""The task farm: run many independent trainings, each in its own process, a few at a time."""

import queue
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.runtime.cluster import Cluster
from helpers.runtime.devices import cores
from helpers.runtime.failure import WorkerError
from helpers.runtime.joined import member
from helpers.runtime.screen import Screen

POLL_SECONDS = 0.2  # how often the caller wakes up, to draw and to react to an interrupt


class FarmError(RuntimeError):
    """Some tasks failed on every try. All the other tasks were carried out.

    Attributes:
        failed: {index of the task: its last error}.
        results: of all tasks, in order; None for a failed task.
    """

    def __init__(self, tasks: Sequence, failed: dict[int, Exception], results: list):
        lines = [
            f"task {place}, {shown(tasks[place])}: {failed[place]}" for place in sorted(failed)
        ]
        super().__init__(f"{len(failed)} of {len(tasks)} tasks failed:\n" + "\n".join(lines))
        self.failed, self.results = failed, results


def farm(
    fn: Callable,
    tasks: Sequence,
    *,
    workers: int = 2,
    retries: int = 1,
    done: Callable[[int, Any], None] | None = None,
    timeout: float | None = None,
) -> list:
    """Run `fn(worker, task)` for every task, `workers` at a time. Returns the results in order.

    Each worker is the only rank of its own world. The tasks share no process group, so no task
    waits for another, and a worker that dies stops no other worker. A worker that finishes a task
    takes the next one. Threads per worker: cores ÷ workers, at least 1. GPUs are shared out among
    the workers.

    Args:
        fn: any function, as for `launch`; `worker.rank` is always 0.
        tasks: any values that `launch` can pass to a rank. A dict is passed as keyword arguments.
        retries: how many more times to try a failed task, each time in a fresh process.
        done: called as `done(index, result)` in this process, in the order of completion. Save the
            result there, and a farm that was killed can continue later.
        timeout: seconds without a sign of life after which a task counts as hanging.

    Raises:
        FarmError: tasks failed; raised after all the others are finished.
        RuntimeError: the process runs under a launcher, which owns the processes.
        Exception: whatever `done` raises; the farm then stops, as after an interrupt.
    """
    __tracebackhide__ = True
    if workers < 1 or retries < 0:
        raise ValueError("workers must be at least 1, and retries must not be negative")
    if member.here():
        raise RuntimeError("farm starts its own processes: run this script without a launcher")
    tasks = list(tasks)
    workers = max(1, min(workers, len(tasks)))
    threads = max(1, cores() // workers)
    waiting, news = queue.SimpleQueue(), queue.SimpleQueue()
    for place in range(len(tasks)):
        waiting.put((place, 1))
    gpus = max(1, torch.cuda.device_count())
    clusters = [Cluster(1, timeout=timeout, first_gpu=k % gpus) for k in range(workers)]
    over = threading.Event()
    hands = [
        threading.Thread(
            target=work,
            args=(cluster, fn, tasks, waiting, news, retries, threads, over),
            daemon=True,
        )
        for cluster in clusters
    ]
    results, failed = [None] * len(tasks), {}
    screen, count = Screen(), 0
    try:
        for hand in hands:
            hand.start()
        while count < len(tasks):
            try:
                place, result, error = news.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            count += 1
            if error is not None:
                failed[place] = error
            else:
                results[place] = result
                if done:
                    done(place, result)
            screen.progress(0, "tasks", count, len(tasks))
            screen.draw()
        screen.finish()
    finally:
        over.set()
        while any(hand.is_alive() for hand in hands):
            for cluster in clusters:
                end(cluster)  # again: a worker may have been between two tasks
            for hand in hands:
                if hand.ident:
                    hand.join(POLL_SECONDS)
        for cluster in clusters:
            cluster.close()
    if failed:
        raise FarmError(tasks, failed, results)
    return results


def work(cluster, fn, tasks, waiting, news, retries, threads, over):
    """Run in one thread: carry out task after task in the thread's own process."""
    while not over.is_set():
        try:
            place, attempt = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            (result,) = cluster.run(carry_out, fn=fn, task=tasks[place], threads=threads)
        except Exception as error:
            if isinstance(error, WorkerError) and attempt <= retries and not over.is_set():
                waiting.put((place, attempt + 1))
            else:
                news.put((place, None, error))
        else:
            news.put((place, result, None))


def end(cluster: Cluster):
    """Kill the process. Its thread notices and cleans up: only one thread may read the channel."""
    if processes := cluster.processes:
        processes.signal([0], signal.SIGKILL)


def carry_out(worker, fn, task, threads):
    torch.set_num_threads(threads)
    return fn(worker, **task) if isinstance(task, dict) else fn(worker, task)


def shown(task, width: int = 80) -> str:
    text = " ".join(repr(task).split())
    return text if len(text) <= width else text[: width - 1] + "…"
