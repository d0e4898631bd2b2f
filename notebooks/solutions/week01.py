"""Solutions of week 1."""

import torch
import torch.distributed as dist


def global_mean(worker, values):
    """Sum and count travel together; only then is there something to divide."""
    total = torch.tensor([values.sum().item(), len(values)], dtype=torch.float64)
    total = total.to(worker.device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def tree_broadcast(worker, tensor, source):
    """Ranks are counted from the source on: in each step 0 … have-1 send to have … 2 have - 1."""
    n = worker.world_size
    away = (worker.rank - source) % n
    have = 1
    while have < n:
        if away < have and away + have < n:
            dist.send(tensor, (worker.rank + have) % n)
        elif have <= away < 2 * have:
            dist.recv(tensor, (worker.rank - have) % n)
        have *= 2


def ring_all_reduce(worker, tensor):
    """Chunks of nearly one size; some are empty where there are fewer numbers than ranks."""
    n, rank = worker.world_size, worker.rank
    chunks = tensor.tensor_split(n)  # views
    for step in range(2 * (n - 1)):
        going, coming = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(coming)
        requests = [dist.isend(going, (rank + 1) % n), dist.irecv(incoming, (rank - 1) % n)]
        for request in requests:
            request.wait()
        if step < n - 1:
            coming += incoming
        else:
            coming.copy_(incoming)


def all_to_all(worker, parts):
    """In step k: to the one k to the right, from the one k to the left, both at once."""
    n, rank = worker.world_size, worker.rank
    result = [torch.empty_like(part) for part in parts]
    result[rank].copy_(parts[rank])
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        requests = [dist.isend(parts[to], to), dist.irecv(result[source], source)]
        for request in requests:
            request.wait()
    return result


def bytes_on_the_wire(collective, ranks, size):
    """A phase of the ring is N-1 steps of one chunk; a broadcast brings N-1 ranks the whole."""
    phase = (ranks - 1) * size / ranks
    if collective == "all_reduce":
        return 2 * phase
    return (ranks - 1) * size if collective == "broadcast" else phase
