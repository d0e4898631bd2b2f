"""Greedy: the tokens without speculation. Sampled: their distribution, over all paths, exactly."""

import math
from itertools import product

import pytest
import torch

from helpers.inference import speculative
from helpers.inference.accept import decide
from helpers.inference.generate import generate
from helpers.inference.sampling import NotANumber, Sampling, choose, probabilities
from helpers.inference.speculative import Speculated, generate_speculatively
from helpers.models.caches.cache import Kept
from helpers.models.caches.preallocated import Preallocated

PROMPTS = [[3, 7, 1, 1, 12], [5], [2, 9, 9, 0, 4, 18, 6, 6, 3], [8, 8]]
WARM = Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def draft(make_model):
    """Like the target, with some noise: it guesses right sometimes."""
    model = make_model()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator).double()
    return model


def ends(results):
    return [(one.prompt, one.tokens, one.reason) for one in results]


@pytest.mark.parametrize("guesses", [0, 1, 3, 8, 40])
def test_greedy_tokens_are_those_without_speculation(llama, draft, guesses):
    expected = generate(llama, PROMPTS, [14, 3, 1, 15])
    assert min(one.margin for one in expected) > 1e-9
    found = generate_speculatively(llama, draft, PROMPTS, [14, 3, 1, 15], guesses=guesses)
    assert ends(found) == ends(expected)
    for one in found:
        assert one.accepted <= one.tested <= one.proposed <= guesses * one.rounds
        assert one.rounds + one.accepted == len(one.tokens)
    if guesses in (3, 8):
        assert sum(one.accepted for one in found) > 3
        assert any(one.accepted < one.tested for one in found)
        assert max(one.rounds for one in found) < 14


def test_other_shapes_and_an_unlike_draft(model, draft):
    expected = generate(model, PROMPTS, 12)
    assert ends(generate_speculatively(model, draft, PROMPTS, 12)) == ends(expected)


def test_a_draft_that_is_the_target_is_always_right(llama):
    for sampling in (Sampling(), WARM):
        for one in generate_speculatively(llama, llama, PROMPTS, 15, guesses=4, sampling=sampling):
            assert one.rounds == 3
            assert (one.proposed, one.tested, one.accepted) == (12, 12, 12)
    for seed, one in enumerate(generate_speculatively(llama, llama, PROMPTS, 15, sampling=WARM)):
        for end in (4, 9, 14):  # the target's own token after each round has its place's number
            text = one.prompt + one.tokens[:end]
            with torch.no_grad():
                logits = llama(torch.tensor([text]))[:, -1]
            assert choose(logits, WARM, [seed], [len(text)]).tolist() == [one.tokens[end]]


def test_without_guesses_sampled_tokens_are_those_of_generate(llama, draft):
    samplings = [WARM, Sampling(temperature=2.0, top_k=5), Sampling(), WARM]
    options = {"sampling": samplings, "seeds": [4, 4, 4, 2**50]}
    found = generate_speculatively(llama, draft, PROMPTS, 9, guesses=0, **options)
    assert ends(found) == ends(generate(llama, PROMPTS, 9, **options))


def test_sampled_tokens_do_not_depend_on_the_batch(llama, draft):
    options = {"sampling": WARM, "guesses": 3}
    together = generate_speculatively(llama, draft, PROMPTS, 9, seeds=[1, 2, 3, 4], **options)
    for number, one in enumerate(together):
        [alone] = generate_speculatively(
            llama, draft, PROMPTS[number : number + 1], 9, seeds=[number + 1], **options
        )
        assert alone == one
    assert together == generate_speculatively(
        llama, draft, PROMPTS, 9, seeds=[1, 2, 3, 4], **options
    )


class Paths:
    """Run a function once for each combination of its choices, with the combination's weight."""

    def choose(self, weights):
        """The outcome of the next choice, of those with a positive weight."""
        if len(self.taken) == len(self.path):
            self.path.append([n for n, weight in enumerate(weights) if weight > 0])
        outcome = self.path[len(self.taken)][0]
        self.taken.append(outcome)
        self.weight *= float(weights[outcome])
        return outcome

    def each(self, function):
        self.path = []
        while True:
            self.taken, self.weight = [], 1.0
            result = function()
            yield self.weight, result
            while self.path and len(self.path[-1]) == 1:
                self.path.pop()
            if not self.path:
                return
            self.path[-1].pop(0)


@pytest.mark.parametrize(
    ("vocab", "many", "guesses", "sampling"),
    [
        (3, 3, 2, WARM),
        (2, 4, 3, WARM),
        (3, 3, 1, Sampling(temperature=0.7, top_k=2)),
        (4, 2, 4, Sampling(temperature=2.0, top_p=0.8)),
    ],
    ids=str,
)
@torch.no_grad()
def test_all_paths_have_the_distribution_of_the_target(
    make_model, monkeypatch, vocab, many, guesses, sampling
):
    """Every draw is replaced by all its outcomes, with their probabilities."""
    shape = {"vocab": vocab, "width": 8, "heads": 2, "layers": 1, "context": 8}
    target, draft = make_model(**shape), make_model(**shape, seed=5)
    paths = Paths()

    def pick(weights, draws):
        assert len(weights) == len(draws) == 1
        return torch.tensor([paths.choose(weights[0].tolist())])

    def decided(p, q, tokens, draws):
        draws = []
        for place, token in enumerate(tokens):
            share = min(1.0, float(p[place, token] / q[place, token]))
            accept = paths.choose([1 - share, share])
            draws.append(0.0 if accept else 1 - 2**-53)
            if not accept:
                break
        return decide(p, q, tokens, draws + [0.0] * (len(tokens) - len(draws)))

    monkeypatch.setattr(speculative, "pick", pick)
    monkeypatch.setattr(speculative, "decide", decided)
    found = dict.fromkeys(product(range(vocab), repeat=many), 0.0)
    runs = 0
    for weight, [one] in paths.each(
        lambda: generate_speculatively(
            target, draft, [[1, 0]], many, guesses=guesses, sampling=sampling
        )
    ):
        found[tuple(one.tokens)] += weight
        runs += 1
    assert runs > sum(weight > 0 for weight in found.values())
    for text, weight in found.items():
        logits = target(torch.tensor([[1, 0, *text]]))[0]
        laws = probabilities(logits, sampling)
        expected = math.prod(float(laws[n + 1, token]) for n, token in enumerate(text))
        assert weight == pytest.approx(expected, abs=1e-12), text


@torch.no_grad()
def test_the_draws_of_a_place_are_independent(llama, make_model):
    """The first two tokens of 1,000 seeds. The seeds are fixed: this is a fact, not a chance."""
    many, sampling = 1000, Sampling(temperature=2.5, top_k=6)
    unlike = make_model(seed=5)
    found = generate_speculatively(llama, unlike, [[3, 7]] * many, 3, guesses=2, sampling=sampling)
    assert 0.1 < sum(one.accepted for one in found) / sum(one.tested for one in found) < 0.7
    first = probabilities(llama(torch.tensor([[3, 7]]))[0, -1:], sampling)[0]
    for token in first.nonzero()[:, 0].tolist():
        exact = float(first[token])
        share = sum(one.tokens[0] == token for one in found) / many
        assert abs(share - exact) <= 3.5 * math.sqrt(exact * (1 - exact) / many)
        second = probabilities(llama(torch.tensor([[3, 7, token]]))[0, -1:], sampling)[0]
        for other in second.nonzero()[:, 0].tolist():
            exact = float(first[token] * second[other])
            share = sum(one.tokens[:2] == [token, other] for one in found) / many
            assert abs(share - exact) <= 3.5 * math.sqrt(exact * (1 - exact) / many) + 1 / many


def test_stop_tokens_end_a_request_in_the_middle_of_a_round(llama, draft):
    free = [one.tokens for one in generate(llama, PROMPTS, 12)]
    stop = (free[0][2], free[1][5])
    expected = generate(llama, PROMPTS, 12, stop=stop)
    for guesser in (draft, llama):
        found = generate_speculatively(llama, guesser, PROMPTS, 12, guesses=5, stop=stop)
        assert ends(found) == ends(expected)


def test_the_contexts_of_both_models_end(llama, make_model):
    long = (PROMPTS[2] * 3)[:24]
    prompts = [long, long[:20], [1], long[:11], long[:12], long[:9]]
    expected = generate(llama, prompts, 30)
    for context in (24, 12, 1, 40):
        guesser = make_model(context=context)  # rotary: the same weights
        found = generate_speculatively(llama, guesser, prompts, 30, guesses=4)
        assert ends(found) == ends(expected)
        assert found[2].accepted > 0 or context == 1
        if context == 12:  # the fifth prompt fills it: the draft guesses once, and reads no guess
            assert found[4].proposed == 1


def test_prompts_that_cannot_be_read_and_nothing_to_generate(llama, draft):
    good = generate(llama, PROMPTS, 6)
    prompts = [[], PROMPTS[0], [1] * 25, PROMPTS[1], [19], PROMPTS[2], PROMPTS[3]]
    found = generate_speculatively(llama, draft, prompts, 6)
    assert ends(found) == ends(generate(llama, prompts, 6))
    assert [one.tokens for one in found[1::2]] == [one.tokens for one in good[:3]]
    assert (found[0].rounds, found[0].tested) == (0, 0)
    assert generate_speculatively(llama, draft, [], 6) == []
    none = generate_speculatively(llama, draft, [[1]], 0)
    assert none == [Speculated(prompt=[1], tokens=[], reason="length")]


def test_a_draft_of_nan_costs_guesses_and_no_tokens(llama, make_model):
    broken = make_model()
    with torch.no_grad():
        broken.norm.weight[0] = math.nan
    found = generate_speculatively(llama, broken, PROMPTS, 6)
    assert ends(found) == ends(generate(llama, PROMPTS, 6))
    assert {one.proposed for one in found} == {0}


def test_a_target_of_nan_ends_its_request_and_no_other(make_model):
    model = make_model(tied=False, vocab=97)
    guesser = make_model(tied=False, vocab=97)
    good = generate(model, PROMPTS, 8)
    seen = {token for one in (good[0], good[2]) for token in one.prompt + one.tokens}
    late = next(t for t in good[1].tokens[1:-1] if t not in {*seen, good[1].tokens[0]})
    with torch.no_grad():
        model.embedding.weight[late] = math.nan
    found = generate_speculatively(model, guesser, PROMPTS, 8, guesses=5)
    assert ends(found[0::2]) == ends(good[0::2])
    one = found[1]
    assert one.reason == f"error: {NotANumber.text}"
    assert 0 < len(one.tokens) < 8
    assert one.tokens == good[1].tokens[: len(one.tokens)]
    [plain] = generate_speculatively(model, guesser, PROMPTS[1:2], 8, guesses=0)
    assert ends([plain]) == ends(generate(model, PROMPTS[1:2], 8))


def test_nan_after_the_last_guess_alone_ends_the_request(llama, make_model):
    """The logits before the guess are numbers, but one forward gives all of them."""
    broken = make_model()

    def spoil(module, inputs, y):
        y[:, -1:] = math.nan if y.shape[1] == 3 else y[:, -1:]  # the second round: 1 + 2 tokens

    broken.norm.register_forward_hook(spoil)
    [found] = generate_speculatively(broken, llama, [PROMPTS[0]], 9, guesses=2)
    assert found.reason == f"error: {NotANumber.text}"
    assert found.tokens == generate(llama, [PROMPTS[0]], 3)[0].tokens


def test_each_cache_has_the_slots_that_its_model_reads(llama, make_model, monkeypatch):
    made = []
    monkeypatch.setattr(
        "helpers.inference.reading.Preallocated",
        lambda kept, many, capacity, *place: (
            made.append((capacity, place[0])) or Preallocated(kept, many, capacity, *place)
        ),
    )
    for new_tokens in (2, 6):  # the longest prompt has 9 tokens; the last new one is not read
        generate_speculatively(llama, make_model(torch.float32, context=12), PROMPTS, new_tokens)
    double, single = torch.float64, torch.float32  # each cache has its model's numbers
    assert made == [(10, double), (10, single), (14, double), (12, single)]


def test_arguments_that_cannot_be(llama, draft, make_model, monkeypatch):
    with pytest.raises(ValueError, match="the model has 19 tokens and the draft 20: both must"):
        generate_speculatively(llama, make_model(vocab=20), PROMPTS, 3)
    for options, message in (
        ({"new_tokens": -1}, "new_tokens must not be negative"),
        ({"guesses": -1}, "guesses must not be negative: -1"),
        ({"seeds": [1]}, "4 prompts, but 1 seeds"),
        ({"sampling": [WARM]}, "4 prompts, but 1 samplings"),
        ({"new_tokens": [1]}, "4 prompts, but 1 new_tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            generate_speculatively(llama, draft, PROMPTS, **{"new_tokens": 3, **options})
    recurrent = {0: Kept(per_sequence=((2,),))}
    for name, wrong in (("model", llama), ("draft", draft)):
        monkeypatch.setattr(
            speculative, "kept_by", lambda one, wrong=wrong: recurrent if one is wrong else {}
        )
        with pytest.raises(ValueError, match=f"the {name} has recurrent blocks"):
            generate_speculatively(llama, draft, PROMPTS, 3)
