"""The steps of a transform that need no message: cut parameters, shares of tokens, positions."""

from dataclasses import replace

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.attention import FanOut
from helpers.models.gpt import GPTConfig
from helpers.models.settings import Mamba2Settings
from helpers.parallel.tensor.layers import Column, RowParallel
from helpers.parallel.tensor.mamba2 import SumOverRanks
from helpers.parallel.tensor.regions import Sharded, Whole
from helpers.parallel.tensor.transform import (
    cut_parameters,
    first_row,
    locate,
    sequence_parallel,
    share_of_tokens,
    tensor_parallel,
)
from helpers.parallel.transform import plain
from helpers.state.placing import Seat

SEAT = Seat(Layout(tp=2), 1)
TINY = GPTConfig(vocab=33, context=8, width=16, layers=1, heads=2, dropout=0.1)


@pytest.mark.parametrize("tied", [True, False])
def test_cut_parameters_stay_tied_and_frozen(tied):
    config = GPTConfig(vocab=33, context=8, width=16, layers=1, heads=2, tied=tied)
    model = plain(config, 0, SEAT, torch.float64).model
    query = model.blocks["0"].attention.query
    query.weight.requires_grad_(False)
    parts = cut_parameters(model, SEAT, "tp")
    assert (model.head.weight is model.embedding.weight) == tied
    assert model.head.weight.shape == (16, 16)  # rank 0 has the other 17 rows
    assert first_row(parts["embedding.weight"]) == 17
    assert not query.weight.requires_grad
    for name, p in model.named_parameters():
        assert p.shape == parts[name].local_shape
        assert p.dtype is torch.float64
        assert p.requires_grad == (name != "blocks.0.attention.query.weight")


def test_only_replicated_parameters_get_a_share_of_the_tokens():
    model = plain(TINY, 0, SEAT, torch.float64).model
    for name, part in cut_parameters(model, SEAT, "tp").items():
        pending = share_of_tokens(SEAT, part, "tp").pending
        assert list(pending) == ([(0, 1)] if "norm" in name else list(part.pending)), name


class Alone:
    """The second of two ranks, without messages."""

    size, rank = 2, 1


def test_a_rank_s_positions_are_those_of_its_tokens():
    model, tokens = TINY.build(torch.float32, "cpu"), torch.zeros(3, 6, dtype=torch.long)
    every = model.locate(tokens)
    for around, own in ((Sharded(Alone()), slice(3, 6)), (Whole(Alone()), slice(0, 6))):
        found = locate(model.locate, around, tokens)
        assert torch.equal(found.places, every.places[own])
        assert torch.equal(found.key, every.key[:, own])
        assert all(map(torch.equal, found.angles, every.angles))  # a layer has all tokens
    model.eval()
    assert locate(model.locate, Sharded(Alone()), tokens).key is None
    places = torch.arange(6) + torch.arange(3)[:, None]
    own = locate(model.locate, Sharded(Alone()), tokens, places)
    assert own.places.tolist() == [[3, 4, 5], [4, 5, 6], [5, 6, 7]]


@pytest.mark.parametrize("layout", [Layout(dp=2), Layout(dp=2, tp=1)], ids=str)
def test_without_ranks_on_the_axis_the_model_is_whole(layout):
    placed = tensor_parallel(TINY, 0, Seat(layout, 1), torch.float32)
    assert not any(part.cuts for part in placed.parts.values())
    assert placed.model.embedding.weight.shape == (33, 16)


class Placeless:
    """A mesh of two ranks without processes: its group is never used."""

    layout, rank = Layout(tp=2), 1

    def group(self, axis):
        return axis


def made(transform, config=TINY, **options):
    placed = transform(
        config, 0, Placeless(), torch.float32, transport=lambda axis: Alone(), **options
    )
    return placed.model, placed.parts, placed.model.embedding.region


def test_the_options_of_sequence_parallelism_reach_every_layer():
    model, parts, region = made(sequence_parallel, again=False, chunks=3)
    assert isinstance(region, Sharded)
    assert (region.keeps_whole, region.chunks) == (True, 3)
    block = model.blocks["0"]
    rows = (block.attention.out, block.mlp.down)
    assert {type(row) for row in rows} == {RowParallel}
    assert all(layer.region is region for layer in (*rows, block.attention.fan_out))
    assert all(layer.overlap for layer in (*rows, block.attention.fan_out, block.mlp.fan_out))
    assert isinstance(model.head, Column)
    assert model.head.weight is model.embedding.weight
    assert type(model.fan_out) is FanOut  # it calls the head, whose hooks run then
    norms = [name for name, part in parts.items() if part.pending == ((0, 1),)]
    assert norms == [name for name in parts if "norm" in name]
    plain_region = made(sequence_parallel)[2]
    assert (plain_region.keeps_whole, plain_region.chunks) == (False, 1)


def test_tensor_parallelism_without_overlap():
    model, parts, region = made(tensor_parallel, overlap=False)
    assert type(region) is Whole
    block = model.blocks["0"]
    layers = (block.attention.out, block.attention.fan_out, block.mlp.down, block.mlp.fan_out)
    assert not any(layer.overlap for layer in layers)
    assert isinstance(model.head, torch.nn.Linear)
    assert not any(part.pending for part in parts.values())


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_begins_at_this_rank_s_first_row(tied):
    model, _, _ = made(tensor_parallel, replace(TINY, tied=tied))
    assert (model.embedding.start, model.criterion.start) == (17, 17)
    assert (model.embedding.vocab, model.criterion.vocab) == (33, 33)
    assert len(model.head.weight) == 16


@pytest.mark.parametrize("groups", [1, 2])
def test_blocks_without_an_mlp_and_a_norm_that_ranks_share(groups):
    """With a group for each rank, the norm's sum needs no message."""
    settings = Mamba2Settings(state=3, head=8, groups=groups)
    config = replace(TINY, positions="none", mlp="none", mixer="mamba2", mamba2=settings)
    model, _, region = made(tensor_parallel, config)
    mixer = model.blocks["0"].mamba2
    assert isinstance(mixer.out, RowParallel)
    assert mixer.out.region is mixer.fan_out.region is region
    joined = mixer.gated_norm.over_ranks
    assert isinstance(joined, SumOverRanks) == (groups == 1)
    assert groups == 2 or joined.transport is region.transport


def test_a_stage_in_the_middle_has_neither_embedding_nor_head():
    class Middle:
        def build(self, dtype, device, **options):
            return TINY.build(dtype, device, first=False, last=False, **options)

    placed = sequence_parallel(
        Middle(), 0, Placeless(), torch.float32, transport=lambda axis: Alone()
    )
    assert not any("embedding" in name or "head" in name for name in placed.parts)
    assert isinstance(placed.model.blocks["0"].attention.out, RowParallel)
