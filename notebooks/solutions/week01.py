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
        requests = [
            dist.isend(going, (rank + 1) % n),
            dist.irecv(incoming, (rank - 1) % n),
        ]
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


def place_on_roofline(flops, nbytes, peak, bandwidth):
    """The longer of the two times decides, since a processor computes and moves at once."""
    compute, move = flops / peak, nbytes / bandwidth
    limit = "arithmetic" if compute > move else "memory"
    return flops / max(compute, move), limit


def count_attention(batch, heads, tokens, width, size):
    """The (T, T) scores move four times: out of the product, through softmax, into the product."""
    vectors, scores = tokens * width, tokens * tokens  # of one head
    flops = 2 * 2 * tokens * tokens * width
    numbers = (2 * vectors + scores) + (scores + scores) + (scores + vectors + vectors)
    return batch * heads * flops, batch * heads * numbers * size


def sum_uneven(worker, gradients, size):
    """All ranks agree on the longest list first; a rank with no gradient left adds zeros."""
    steps = torch.tensor(len(gradients), device=worker.device)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    sums = []
    for step in range(int(steps)):
        total = torch.zeros(size, device=worker.device)
        if step < len(gradients):
            total += gradients[step]
        dist.all_reduce(total)
        sums.append(total)
    return sums


def name_culprit(reports):
    """A silent rank first, then an error that no other rank caused, then the calls."""
    for rank, report in enumerate(reports):
        if not report["alive"]:
            return rank
    for rank, report in enumerate(reports):
        error = report["error"]
        if (
            error
            and "Connection closed by peer" not in error
            and "timed out" not in error
        ):
            return rank
    calls = [report["calls"] for report in reports]
    fewest = min(calls, key=len)
    if any(len(made) > len(fewest) for made in calls):
        return calls.index(fewest)
    for place in zip(*calls, strict=True):
        usual = max(place, key=place.count)
        if any(call != usual for call in place):
            return next(rank for rank, call in enumerate(place) if call != usual)
    raise ValueError("no rank differs from the others")
