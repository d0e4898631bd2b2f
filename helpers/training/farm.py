"""A task farm: many independent trainings, each on a process of its own, a few at a time."""

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

POLL_SECONDS = 0.2  # how often the caller looks up, to draw and to be interrupted


class FarmError(RuntimeError):
    """Some tasks failed, each as often as it was tried. The others were carried out.

    Attributes:
        failed: {place of the task: its last error}.
        results: of all tasks, in order; None where one failed.
    """

    def __init__(self, tasks: Sequence, failed: dict[int, Exception], results: list):
        lines = [
            f"task {place}, {shown(tasks[place])}: {failed[place]}" for place in sorted(failed)
        ]
        super().__init__(f"{len(failed)} of {len(tasks)} tasks failed\n" + "\n".join(lines))
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

    Each of the workers is a rank in a world of its own: the tasks share no process group, so none
    waits for another, and one that dies takes no other along. A worker takes the next task when it
    has ended one. Threads per worker: cores ÷ workers, at least 1. Where there are GPUs, the
    workers are spread over them.

    Args:
        fn: any function, as for `launch`; `worker.rank` is 0 for all.
        tasks: any things that can travel. One that is a dict is given as keyword arguments.
        retries: how many more times a task is tried that failed, on a fresh process.
        done: called as `done(place, result)` in this process, in the order of completion: to save
            what there is, so that a farm that was killed can go on from there.
        timeout: seconds without a sign of life after which a task counts as hanging.

    Raises:
        FarmError: after all others are through, if tasks failed; names them.
        RuntimeError: under a launcher, where the processes are given.
        what `done` raises; the farm is stopped then, as by an interrupt.
    """
    __tracebackhide__ = True
    if workers < 1 or retries < 0:
        raise ValueError("workers must be at least 1, and retries must not be negative")
    if member.here():
        raise RuntimeError("a farm starts its own processes: call it without a launcher")
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
                end(cluster)  # again: one may have been between two tasks
            for hand in hands:
                if hand.ident:
                    hand.join(POLL_SECONDS)
        for cluster in clusters:
            cluster.close()
    if failed:
        raise FarmError(tasks, failed, results)
    return results


def work(cluster, fn, tasks, waiting, news, retries, threads, over):
    """What one thread does: task after task on its own process."""
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
    """Kill the process. Its thread hears of it and clears up: two must not read one channel."""
    if processes := cluster.processes:
        processes.signal([0], signal.SIGKILL)


def carry_out(worker, fn, task, threads):
    torch.set_num_threads(threads)
    return fn(worker, **task) if isinstance(task, dict) else fn(worker, task)


def shown(task, width: int = 80) -> str:
    text = " ".join(repr(task).split())
    return text if len(text) <= width else text[: width - 1] + "…"
