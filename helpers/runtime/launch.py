"""Run one function on many ranks."""

from helpers.runtime.cluster import DEFAULT_TIMEOUT, Cluster
from helpers.runtime.runs import Runs


def launch(
    fn,
    /,
    workers: int = 2,
    *,
    device: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    live: str | None = None,
    debug: bool = False,
    start: str | None = None,
    network: bool = False,
    **kwargs,
) -> Runs:
    """Run `fn(worker, **kwargs)` on `workers` fresh processes that form a process group.

    In a script that torchrun, `accelerate launch`, srun or mpiexec started, it starts none: each
    of their ranks joins as the rank that it is already, and all get the same answer.

    Args:
        fn: any function, also one of a cell, a lambda or a closure. It travels by value.
        workers: how many ranks; a launcher's own number takes its place.
        device: "cpu" or "cuda"; by default CUDA and NCCL where there is a GPU for each rank, else
            the CPU and gloo.
        timeout: seconds without a sign of life from any rank (a log, a print, a rank's end) after
            which the call ends as hanging; None: never. A hang that can be proved ends within
            seconds. Under a launcher: seconds without one from a rank's machine.
        live: a value given to `worker.log`, drawn while it comes.
        debug: PyTorch compares the ranks' collectives and names those that differ; NCCL logs.
        start: "fork" or "spawn", torch.multiprocessing's ways to start a process, to compare them;
            by default the faster one that is safe here.
        network: let the ranks use this machine's network, to download something, say. By default
            they have one of their own, where the system lets them: nobody else reaches them.
            Under a launcher they are where the launcher has started them.
        kwargs: passed to `fn`, by value; tensors arrive on the CPU.

    Returns:
        Runs: `runs[rank]` is what `fn` returned there; tensors come back on the CPU.

    Raises:
        CannotTravel: something cannot be sent; names the variable.
        WorkerError: a rank failed, or ranks wait for each other in vain; all were stopped. In a
            notebook, `%debug` then enters them. Under a launcher every rank raises it.
    """
    __tracebackhide__ = True
    options = {"device": device, "timeout": timeout, "debug": debug, "start": start}
    with Cluster(workers, network=network, **options) as cluster:
        return cluster.run(fn, live=live, **kwargs)
