"""Rows go to their experts and return in order; the exchange runs beside the shared experts."""

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.links import link_bytes
from helpers.comm.transport import GroupTransport
from helpers.models.experts.layer import Experts, Mixture
from helpers.models.experts.permutation import sort, spread
from helpers.models.experts.routing import choose
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings
from helpers.parallel.mixture.exchange import collect, dispatch, route
from helpers.parallel.mixture.transform import CutExperts
from helpers.plans.expert_traffic import rows_by_link
from helpers.runtime.launch import launch
from tests.models.peers import randomised

D = 3
# shares of experts, and each rank's rows for each expert
CASES = {
    "even": ((2, 2), [[1, 2, 3, 4], [5, 6, 7, 8]]),
    "uneven": ((3, 1), [[1, 0, 2, 1], [0, 3, 0, 2]]),
    "no rows for a rank": ((2, 2), [[0, 0, 3, 4], [0, 0, 1, 0]]),
    "no rows of a rank": ((1, 3), [[0, 0, 0, 0], [2, 1, 0, 5]]),
    "no rows": ((2, 2), [[0] * 4] * 2),
    "three ranks": ((2, 1, 2), [[1, 2, 0, 4, 1], [0, 0, 2, 1, 1], [3, 1, 1, 0, 0]]),
}


def rows_of(rank: int, counts: list[int]) -> list[list[float]]:
    """Rows that say where they are from: (rank, expert, which of the rank's rows for it)."""
    return [[rank, expert, i] for expert, n in enumerate(counts) for i in range(n)]


def there_and_back(worker, shares, counts):
    transport = GroupTransport()
    own = counts[worker.rank]
    rows = torch.tensor(rows_of(worker.rank, own), dtype=torch.float64).view(-1, D)
    rows.requires_grad_()
    way = route(torch.tensor(own), shares, transport)
    came = dispatch(rows, way, transport)()
    back = collect(came * 2, way, transport)
    (gradient,) = torch.autograd.grad((back * rows.detach()).sum(), rows)
    return {
        "came": came.tolist(),
        "counts": way.counts.tolist(),
        "back": torch.equal(back, 2 * rows),
        "gradient": torch.equal(gradient, 2 * rows.detach()),
    }


@pytest.mark.usefixtures("kept_ranks")
@pytest.mark.parametrize(("shares", "counts"), CASES.values(), ids=CASES)
def test_there_and_back(shares, counts):
    runs = launch(there_and_back, len(shares), device="cpu", shares=shares, counts=counts)
    first = 0
    for run, share in zip(runs, shares, strict=True):
        own = range(first, first + share)
        expected = [
            row for e in own for r, c in enumerate(counts) for row in rows_of(r, c) if row[1] == e
        ]
        assert run["came"] == expected  # by expert, then by rank, then in the rank's order
        assert run["counts"] == [sum(c[e] for c in counts) for e in own]
        assert run["back"]
        assert run["gradient"]
        first += share


E, NODES, LOCAL = 8, 2, 2


def counted(worker, limit):
    """(rows inside, rows between) of a dispatch: by the ledger, and as planned."""
    torch.manual_seed(worker.rank)
    chosen = choose(torch.rand(9, E), k=3, groups=NODES, limit=limit)
    order, transport = sort(chosen, E), GroupTransport()
    way = route(order.counts, [E // transport.size] * transport.size, transport)
    with ledger() as log:
        dispatch(spread(torch.ones(9, D), order), way, transport)()
    planned = rows_by_link(chosen.tolist(), worker.rank, experts=E, nodes=NODES, local=LOCAL)
    links = link_bytes(log.entries, worker.rank, LOCAL)
    return {link: size / (4 * D) for link, size in links.items()}, planned["each"]


@pytest.mark.usefixtures("kept_ranks")
@pytest.mark.parametrize("limit", [None, 1])
def test_the_rows_of_each_link_are_the_planned_rows(limit):
    for found, planned in launch(counted, NODES * LOCAL, device="cpu", limit=limit):
        assert found == planned
        assert sum(planned.values()) > 9


class Noted(GroupTransport):
    """Notes when all-to-alls start, and when they are waited for."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def all_to_all(self, received, sent, sizes=(None, None)):
        self.notes.append("start")
        self.work = super().all_to_all(received, sent, sizes)
        return self

    def wait(self):
        self.notes.append("wait")
        self.work.wait()


def beside(worker):
    settings = ExpertSettings(count=4, hidden=5, shared=1)
    config = GPTConfig(vocab=8, context=4, width=6, heads=3, experts=settings)
    mixture, notes = randomised(Mixture(config, dtype=torch.float64)), []
    mixture.experts = CutExperts(Experts(config, 2, dtype=torch.float64), Noted(notes), [2, 2])
    randomised(mixture.experts)
    mixture.shared.register_forward_hook(lambda *_: notes.append("shared"))
    mixture.shared.gate.weight.register_hook(lambda _: notes.append("shared"))
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    y = mixture(x)
    forward = notes[:]
    notes.clear()
    y.sum().backward()
    return forward, notes


def test_the_rows_travel_beside_the_shared_experts():
    for forward, backward in launch(beside, 2, device="cpu"):
        counts, rows = ["start", "wait"], ["start", "shared", "wait"]
        assert forward == counts + rows + ["start", "wait"]
        assert backward == ["start", "wait"] + rows
