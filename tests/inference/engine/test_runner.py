"""The runner computes what it is told, and chooses tokens as `generate` does."""

import pytest
import torch

from helpers.inference.engine.request import Request
from helpers.inference.engine.runner import Piece, Runner
from helpers.inference.generate import generate
from helpers.inference.sampling import Sampling
from helpers.models.settings import Mamba2Settings

WARM = Sampling(temperature=1.5, top_k=9)
REQUESTS = [
    Request(4, [3, 7, 1, 1, 12], 6),
    Request(9, [5], 6, sampling=WARM, seed=3),
    Request(2, [2, 9, 9, 0, 4, 18, 6], 6, sampling=Sampling(temperature=0.7)),
]


def expected_of(model, request):
    [found] = generate(
        model, [request.prompt], request.new_tokens, sampling=request.sampling, seeds=[request.seed]
    )
    return found.tokens


def piece(request, tokens, place):
    return Piece(number=request.number, tokens=tokens, request=request, place=place)


def serve(runner, requests, steps, padding=0):
    """Prefill all prompts at once, then decode."""
    for request in requests:
        assert runner.start(request.number, request.prompt) == 0
    pieces = [piece(r, r.prompt, len(r.prompt)) for r in requests]
    tokens = {request.number: [] for request in requests}
    for _ in range(steps):
        found = runner.step(pieces, padding)
        for number, token in found.items():
            tokens[number].append(token)
        pieces = [
            piece(r, tokens[r.number][-1:], len(r.prompt) + len(tokens[r.number])) for r in requests
        ]
    return tokens


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_cache_has_the_model_s_format(make_model, dtype):
    runner = Runner(make_model().to(dtype), 3, 4)
    half = Runner(make_model().half(), 3, 4)
    assert runner.paged.bytes == half.paged.bytes * dtype.itemsize // 2


@pytest.mark.parametrize("padding", [0, 2])
def test_a_model_with_states_gets_a_padded_batch(make_model, padding):
    mixers = {"mixer": ("mamba2", "attention"), "mamba2": Mamba2Settings(head=8, state=5)}
    model, shapes = make_model(**mixers), []
    runner = Runner(model, 20, 4)
    assert not runner.packs
    model.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    found = serve(runner, REQUESTS, 6, padding)
    assert shapes == [(3 + padding, 7)] + [(3 + padding, 1)] * 5
    assert found == {request.number: expected_of(model, request) for request in REQUESTS}
    runner.release_all()
    assert runner.free == 20
    assert not runner.paged.sequences


def test_a_piece_of_a_prompt_gives_no_token(llama):
    runner, request = Runner(llama, 20, 4), REQUESTS[2]
    runner.start(2, request.prompt)
    assert runner.step([Piece(number=2, tokens=request.prompt[:3])]) == {}
    runner.start(4, REQUESTS[0].prompt)
    rest = piece(request, request.prompt[3:], 7)
    found = runner.step([Piece(number=4, tokens=REQUESTS[0].prompt[:2]), rest])
    assert found == {2: expected_of(llama, request)[0]}


def test_blocks_are_held_and_given_back(llama):
    runner = Runner(llama, 20, 4)
    assert (runner.blocks, runner.free, runner.block_size) == (20, 20, 4)
    assert runner.paged.store.memory.dtype is torch.float64  # as the model's numbers
    serve(runner, REQUESTS, 1)
    assert [runner.held(n) for n in (4, 9, 2)] == [2, 1, 2]
    assert runner.free == 15
    runner.release(4)
    assert runner.free == 17
    runner.release_all()
    assert runner.free == 20
    assert not runner.sequences


def test_a_known_prompt_is_shared_and_not_held_alone(llama):
    runner, prompt = Runner(llama, 20, 4, share_prefixes=True), [1, 2, 3, 4, 5, 6, 7, 8, 9]
    first, second = Request(0, prompt, 4), Request(1, prompt, 4)
    assert runner.start(0, prompt) == 0
    [token] = runner.step([piece(first, prompt, 9)]).values()
    assert runner.start(1, prompt) == 8
    assert (runner.held(0), runner.held(1), runner.free) == (1, 0, 17)
    assert runner.step([piece(second, prompt[8:], 9)]) == {1: token}
    assert token == expected_of(llama, first)[0]


def test_a_first_piece_is_not_registered_as_if_it_were_whole(llama):
    runner, prompt = Runner(llama, 20, 4, share_prefixes=True), list(range(12))
    runner.start(0, prompt)
    runner.step([Piece(number=0, tokens=prompt[:8])])
    assert runner.start(1, prompt) == 0


def test_dropout_is_off_and_the_model_is_left_as_it_was(make_model):
    model = make_model(dropout=0.5).train()
    expected = expected_of(model, REQUESTS[0])
    assert serve(Runner(model, 20, 4), REQUESTS[:1], 6)[4] == expected
    assert model.training


def test_single_tokens_come_first_and_the_shortest_sequence_before_longer_ones(llama):
    """Neighbours of about one length are one group of the packed row."""
    runner, rows = Runner(llama, 40, 4), []
    prompts = {0: [1] * 9, 1: [2] * 3, 2: [3] * 6, 3: [4, 5]}
    for number in (0, 1, 2):
        runner.start(number, prompts[number])
        runner.step([Piece(number=number, tokens=prompts[number])])
    runner.start(3, prompts[3])
    handle = llama.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].tolist()))
    pieces = [(3, prompts[3]), (0, [10]), (2, [12]), (1, [11])]
    runner.step([Piece(number=number, tokens=tokens) for number, tokens in pieces])
    handle.remove()
    assert rows == [[[11, 12, 10, 4, 5]]]


def test_rows_that_pad_a_batch_are_freed_if_the_model_fails(make_model):
    model = make_model(mixer=("mamba2", "attention"), mamba2=Mamba2Settings(head=8, state=5))
    runner, request = Runner(model, 20, 4), REQUESTS[1]
    runner.start(request.number, request.prompt)
    handle = model.norm.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.step([piece(request, request.prompt, 1)], padding=2)
    handle.remove()
    assert list(runner.paged.sequences) == list(runner.sequences.values())
