"""The distribution after accepting and rejecting is exactly the target's, over all paths."""

from itertools import product

import pytest
import torch

from helpers.inference.accept import decide, residual, tokens_per_round

BELOW_ONE = 1 - 2**-53


def laws(generator, vocab, prefixes, zeros):
    """Probabilities after each prefix; some tokens are impossible."""
    found = {}
    for prefix in prefixes:
        weights = torch.rand(vocab, generator=generator, dtype=torch.float64)
        if zeros:
            weights[torch.randint(vocab, (1,), generator=generator)] = 0
        found[prefix] = weights / weights.sum()
    return found


def threshold(accepts) -> float:
    """The share of draws that accept, by bisection. Draws below it accept, and no others do."""
    if not accepts(0.0):
        return 0.0
    if accepts(BELOW_ONE):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def outcomes(p, q, guesses):
    """(probability, accepted, weights of the next token) over all draws, for these guesses."""
    reach, draws = 1.0, []
    for place in range(len(guesses)):

        def accepts(draw, place=place):
            rest = [BELOW_ONE] * (len(guesses) - place - 1)
            return decide(p, q, guesses, [*draws, draw, *rest])[0] > place

        share = threshold(accepts)
        if share < 1:
            rejected = [*draws, BELOW_ONE, *[0.0] * (len(guesses) - place - 1)]
            yield reach * (1 - share), *decide(p, q, guesses, rejected)
        if share == 0:
            return
        reach *= share
        draws.append(0.0)
    yield reach, *decide(p, q, guesses, draws)


@pytest.mark.parametrize("zeros", [False, True], ids=["dense", "zeros"])
@pytest.mark.parametrize(("vocab", "many"), [(2, 3), (3, 2), (4, 1), (1, 2), (3, 0)])
def test_all_paths_together_have_the_targets_distribution(vocab, many, zeros):
    if vocab == 1 and zeros:
        pytest.skip("one token is certain")
    generator = torch.Generator().manual_seed(vocab)
    texts = [list(product(range(vocab), repeat=n)) for n in range(many + 2)]
    prefixes = [text for some in texts[:-1] for text in some]
    p, q = (laws(generator, vocab, prefixes, zeros) for _ in range(2))
    found = dict.fromkeys(texts[-1], 0.0)
    for guesses in texts[many]:
        before = [guesses[:n] for n in range(many + 1)]
        drawn = 1.0
        for prefix, token in zip(before, guesses, strict=False):
            drawn *= float(q[prefix][token])
        if drawn == 0:
            continue
        tables = torch.stack([p[x] for x in before]), torch.stack([q[x] for x in before])[:many]
        for chance, accepted, weights in outcomes(*tables, guesses):
            assert weights.sum() == pytest.approx(1, abs=1e-12)
            for token in range(vocab):
                # the rest of the text is drawn from the target
                start = (*guesses[:accepted], token)
                for rest in product(range(vocab), repeat=many + 1 - len(start)):
                    weight = drawn * chance * float(weights[token])
                    for n, later in enumerate(rest):
                        weight *= float(p[(*start, *rest[:n])][later])
                    found[(*start, *rest)] += weight
    for text, weight in found.items():
        expected = 1.0
        for n, token in enumerate(text):
            expected *= float(p[text[:n]][token])
        assert weight == pytest.approx(expected, abs=1e-12), text


def test_the_chance_to_accept_is_the_sum_of_the_smaller_ones():
    generator = torch.Generator().manual_seed(0)
    for zeros in (False, True):
        p, q = (laws(generator, 5, [()], zeros)[()] for _ in range(2))
        chance = 0.0
        for token in range(5):
            if q[token] > 0:
                [*_, (last, accepted, _)] = outcomes(torch.stack([p, p]), q[None], [token])
                chance += float(q[token]) * last * (accepted == 1)
        assert float(torch.minimum(p, q).sum()) == pytest.approx(chance, abs=1e-12)


def test_the_residual_is_what_the_accepted_guesses_leave():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
    q = torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    expected = torch.tensor([[0.8, 0.0, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(residual(p, q), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(residual(p[0], q[0]), expected[0], rtol=0, atol=1e-15)


def test_greedy_guesses_are_accepted_until_the_first_difference():
    one_hot = torch.eye(4, dtype=torch.float64)
    p, q = one_hot[[2, 0, 3, 1]], one_hot[[2, 0, 1]]
    for draws in ([0.0] * 3, [0.5] * 3, [BELOW_ONE] * 3):
        accepted, weights = decide(p, q, [2, 0, 1], draws)
        assert accepted == 2
        assert torch.equal(weights, one_hot[3])
    accepted, weights = decide(p, one_hot[[2, 0, 3]], [2, 0, 3], [BELOW_ONE] * 3)
    assert accepted == 3
    assert torch.equal(weights, one_hot[1])
    accepted, weights = decide(p[:1], p[:0], [], [])
    assert accepted == 0
    assert torch.equal(weights, one_hot[2])


@pytest.mark.parametrize("many", [1, 2, 4])
def test_expected_tokens_over_all_paths(many):
    """With the same p and q at each place, the guesses are independent: equation 1 is exact."""
    generator = torch.Generator().manual_seed(many)
    p, q = (laws(generator, 2, [()], False)[()] for _ in range(2))
    a, expected = float(torch.minimum(p, q).sum()), 0.0
    for guesses in product(range(2), repeat=many):
        drawn = float(torch.stack([q[token] for token in guesses]).prod())
        for chance, accepted, _ in outcomes(p.expand(many + 1, 2), q.expand(many, 2), guesses):
            expected += drawn * chance * (accepted + 1)
    assert tokens_per_round(a, many) == pytest.approx(expected, abs=1e-12)
    assert tokens_per_round(a, many) == pytest.approx((1 - a ** (many + 1)) / (1 - a), abs=1e-12)


@pytest.mark.parametrize(
    ("a", "guesses", "published"),
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_the_speedups_of_the_paper(a, guesses, published):
    """Leviathan et al. 2023, table 1: a draft that costs nothing."""
    assert tokens_per_round(a, guesses) == pytest.approx(published, abs=0.005)
