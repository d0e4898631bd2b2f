"""The choice among logits that are cut by vocabulary, beside the choice among all logits."""

import pytest
import torch

from helpers.comm.transport import GroupTransport
from helpers.inference.ranks.choice import all_logits, best_token, first_largest
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")


def shares(vocab, ranks):
    """The first tokens of each rank's share, as equal shares as possible, and V at the end."""
    sizes = [vocab // ranks + (rank < vocab % ranks) for rank in range(ranks)]
    return [sum(sizes[:rank]) for rank in range(ranks + 1)]


def choose(worker, cases):
    transport = GroupTransport()
    results = []
    for logits in cases:
        places = shares(logits.shape[1], worker.world_size)
        start, end = places[worker.rank], places[worker.rank + 1]
        own = logits[:, start:end]
        best = best_token(own, start, transport).tolist()
        results.append((best, all_logits(own, logits.shape[1], transport)))
    return results


def some_logits(sequences, vocab, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sequences, vocab, generator=generator, dtype=torch.float64).to(dtype)


def ties():
    """Coarse numbers: most rows have their largest number several times, on several ranks."""
    return some_logits(50, 11).round()


CASES = [
    some_logits(7, 33),
    some_logits(1, 8),
    some_logits(5, 3),  # on 4 ranks, the last has no token
    some_logits(0, 9),
    some_logits(40, 21, torch.float32),
    some_logits(9, 1),
    ties(),
    ties().float() - 1e30,
    torch.tensor([[float("-inf")] * 5 + [1.0]], dtype=torch.float64),
    torch.full((2, 40), -1e9, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_chooses_as_one_process(ranks):
    runs = launch(choose, ranks, device="cpu", cases=CASES)
    for run in runs:
        for logits, (best, gathered) in zip(CASES, run, strict=True):
            assert best == [row.index(max(row)) for row in logits.tolist()]
            assert torch.equal(gathered, logits)
            assert gathered.dtype == logits.dtype


def test_a_token_above_the_exact_integers_of_float32():
    logits = torch.zeros(1, 2)
    logits[0, 1] = 1
    found = launch(lambda w: best_token(logits, 2**25, GroupTransport()), 1, device="cpu")
    assert found[0].tolist() == [2**25 + 1]


@pytest.mark.parametrize("token", [0, 8])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_cannot_be_chosen_is_an_error_on_every_rank(token, wrong):
    """Here the other rank's logits are larger than each number of the rank with NaN."""
    logits = some_logits(3, 9)
    logits[1:, token] = wrong
    logits[:, 8 - token] = 1e6
    with pytest.raises(WorkerError, match=r"NotANumber: sequence 1, 2 of the batch") as caught:
        launch(choose, 2, device="cpu", cases=[logits])
    assert "failed the same way" in str(caught.value)


def test_the_first_of_equal_numbers():
    rows = torch.tensor([[1.0, 3, 3], [3, 3, 3], [2, torch.nan, torch.nan], [0, 1, 2]])
    assert first_largest(rows).tolist() == [1, 0, 1, 2]
