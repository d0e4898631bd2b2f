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
    compare: bool = True,
    start: str | None = None,
    network: bool = False,
    **kwargs,
) -> Runs:
    """Run `fn(worker, **kwargs)` on `workers` fresh processes that form a process group.

    If torchrun, `accelerate launch`, srun or mpiexec started the script, `launch` starts no
    process. Each rank of the launcher joins as the rank that it is already, and every rank
    returns the same results.

    Args:
        fn: any function, also a cell's function, a lambda or a closure. It travels by value.
        workers: the number of ranks; under a launcher, the launcher's own number counts.
        device: "cpu" or "cuda"; by default CUDA and NCCL if there is a GPU for each rank, else
            the CPU and gloo.
        timeout: seconds without a sign of life from any rank (a log, a print, a rank's end) until
            the call ends as hanging; None: never. A hang that can be proved ends within seconds.
            While the ranks start, at least 120 s.
            Under a launcher: seconds without a sign of life from a rank's machine.
        live: the name of a value in `worker.log`; a curve of it grows during the call.
        debug: PyTorch compares the ranks' collectives and names those that differ; NCCL logs.
        compare: name both sides at once if the ranks' calls do not belong together, for example
            if their sizes differ. With NCCL only if `debug` is set. False: as on a cluster.
        start: "fork" or "spawn", torch.multiprocessing's ways to start a process, to compare them;
            by default the faster way that is safe here.
        network: let the ranks use this machine's network, for example to download. By default the
            ranks have a network of their own where the system allows one, and nobody else
            reaches them. Under a launcher, ranks stay in the network that the launcher gave them.
        kwargs: passed to `fn`, by value; tensors arrive on the CPU.

    Returns:
        Runs: `runs[rank]` is the result of `fn` on that rank; tensors come back on the CPU.

    Raises:
        CannotTravel: a value cannot be sent; names the variable.
        WorkerError: a rank failed, or ranks wait for each other forever. The other ranks were
            stopped. In a notebook, `%debug` then enters a rank. Under a launcher every rank
            raises this error.
    """
    __tracebackhide__ = True
    options = {"device": device, "timeout": timeout, "debug": debug, "start": start}
    with Cluster(workers, network=network, compare=compare, **options) as cluster:
        return cluster.run(fn, live=live, **kwargs)
