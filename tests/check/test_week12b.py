"""Week 12 on experts, beyond the loop over all exercises: references, other right answers."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check import week12b as exercises
from helpers.models.experts.permutation import combine, sort, spread
from helpers.models.experts.routing import choose, gates_of, within_capacity


@pytest.mark.parametrize(("words", "given"), exercises.rooms())
def test_gates_and_drops_are_those_of_the_package(words, given):
    scores, chosen, capacity = given
    tokens, k = chosen.shape
    found = exercises.first_come(*given)
    share = capacity * scores.shape[1] / (k * tokens)
    kept = within_capacity(chosen[None], scores.shape[1], share)[0]
    torch.testing.assert_close(found, gates_of(scores, chosen) * kept)
    assert kept.all() == (capacity >= tokens)


@pytest.mark.parametrize(("words", "given"), exercises.biased())
def test_the_choice_is_that_of_the_package(words, given):
    scores, bias, k, rate = given
    chosen, gates, moved = exercises.by_bias(*given)
    assert torch.equal(chosen, choose(scores + bias, k))
    torch.testing.assert_close(gates, gates_of(scores, chosen))
    assert set(((moved - bias) / rate).round().tolist()) <= {-1, 0, 1}


@pytest.mark.usefixtures("shared_ranks")
def test_the_mix_is_that_of_one_process():
    for case in exercises.mix_over_ranks.asked():
        ranks, given = case.arguments
        found = exercises.mix_over_ranks.expected(case)["the result"]
        for rank in range(ranks):
            count = given["tokens"][rank]
            scores = exercises.scored(10 + rank, count, ranks, given["hot"])
            gates, chosen = scores.topk(given["k"])
            order = sort(chosen, ranks)
            rows = spread(exercises.scored(50 + rank, count, exercises.WIDTH) - 0.4, order)
            parts = rows.split(order.counts.tolist())
            out = torch.cat([exercises.expert_of(i)(part) for i, part in enumerate(parts)])
            torch.testing.assert_close(found[rank], combine(out, gates, order))


def by_gather(worker, x, chosen, gates, expert):
    """Every rank's tokens to every rank: far too many bytes, and right."""
    sizes = [None] * worker.world_size
    dist.all_gather_object(sizes, len(x))
    out = torch.zeros_like(x)
    for source, size in enumerate(sizes):
        theirs = x.clone() if source == worker.rank else x.new_empty(size, x.shape[1])
        dist.broadcast(theirs, source)
        results = [torch.empty_like(theirs) for _ in sizes]
        dist.all_gather(results, expert(theirs))
        if source == worker.rank:
            for j in range(chosen.shape[1]):
                own = torch.stack(results)[chosen[:, j], torch.arange(size)]
                out += gates[:, j : j + 1] * own
    return out


def by_messages(worker, x, chosen, gates, expert):
    """Counts as objects, each row with its gate, and no collective for the rows."""
    rank, counts = worker.rank, [None] * worker.world_size
    others = [other for other in range(len(counts)) if other != rank]
    slots = [(chosen == owner).nonzero(as_tuple=True) for owner in range(len(counts))]
    dist.all_gather_object(counts, [len(tokens) for tokens, _ in slots])

    def swapped(rows, sizes):
        came = [x.new_empty(size, rows[0].shape[1]) for size in sizes]
        came[rank] = rows[rank]
        works = [dist.isend(rows[other], other) for other in others]
        for work in works + [dist.irecv(came[other], other) for other in others]:
            work.wait()
        return came

    rows = [torch.cat([x[tokens], gates[tokens, k, None]], 1) for tokens, k in slots]
    theirs = swapped(rows, [row[rank] for row in counts])
    mine = swapped([expert(rows[:, :-1]) * rows[:, -1:] for rows in theirs], counts[rank])
    return torch.zeros_like(x).index_add(0, torch.cat([t for t, _ in slots]), torch.cat(mine))


def by_loop(chosen, home, nodes, experts, width, there, back):
    total = 0
    for own in chosen:
        for node in range(nodes):
            members = range(node * experts // nodes, (node + 1) * experts // nodes)
            total += node != home and any(expert in members for expert in own)
    return total * (width * there + width * back)


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("mix_over_ranks", by_messages, ""),
        ("mix_over_ranks", by_gather, exercises.FAR),
        ("bytes_across_nodes", by_loop, ""),
    ],
)
def test_other_answers_are_judged_by_their_bytes(name, answer, hint):
    verdict = getattr(check, name)(answer)
    assert (verdict.status, verdict.hint) == ("wrong" if hint else "passed", hint), verdict
