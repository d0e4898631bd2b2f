"""Which stage a rank has, where each parameter is, and what stays tied."""

import pytest
import torch

from helpers.comm.mesh import Layout
from helpers.models.gpt import GPTConfig
from helpers.parallel.pipeline.stages import pipeline
from helpers.parallel.tensor.transform import sequence_parallel
from helpers.parallel.transform import plain
from helpers.plans.schedules import Schedule, ScheduleError, gpipe, one_f_one_b
from helpers.plans.schedules.plain import interleaved
from helpers.plans.schedules.zero_bubble import zero_bubble_v
from helpers.state.placing import Seat

SIZES = {"vocab": 17, "context": 6, "width": 8, "heads": 2}
TIED = GPTConfig(**SIZES, layers=4)
UNTIED = GPTConfig(**SIZES, layers=4, tied=False)


def made(layout, rank, schedule, config=TIED, dtype=torch.float32, **options):
    placed = pipeline(config, 0, Seat(layout, rank), dtype, schedule=schedule, **options)
    return placed.model, placed.parts


def test_each_rank_has_its_stages_of_the_plain_model():
    """Together the ranks have each parameter of the plain model, with its shape, once."""
    layout, schedule = Layout(dp=2, pp=3), one_f_one_b(3, 2)  # ranks 0 to 2, and 3 to 5
    seen = {}
    for rank in range(6):
        model, parts = made(layout, rank, schedule, UNTIED, torch.float64)
        [(name, stage)] = model.items()
        assert (name, stage.first, stage.last) == (str(rank % 3), rank % 3 == 0, rank % 3 == 2)
        assert list(parts) == [name for name, _ in model.named_parameters()]
        for own, part in parts.items():
            p = model.get_parameter(own)
            assert (p.dtype, p.device.type) == (torch.float64, "meta")
            assert own == f"{rank % 3}.{own.partition('.')[2]}"
            assert part.name == stage.plain_name(own.partition(".")[2])
            assert tuple(p.shape) == part.shape == part.local_shape
            assert part.holders == (rank % 3, rank % 3 + 3)
            assert part.pending == ()
            if rank < 3:
                assert part.name not in seen
                seen[part.name] = part.shape
    whole = plain(UNTIED, 0, Seat(Layout(dp=1), 0), torch.float64).model
    assert seen == {name: tuple(p.shape) for name, p in whole.named_parameters()}


def test_a_tied_embedding_has_two_homes_and_its_gradient_is_a_sum():
    layout = Layout(pp=3, dp=2)
    for rank in range(6):
        _, parts = made(layout, rank, one_f_one_b(3, 2))
        embeddings = {n: part for n, part in parts.items() if part.name == "embedding.weight"}
        names = {0: ["0.embedding.weight"], 1: [], 2: ["2.head.weight"]}[rank // 2]
        assert list(embeddings) == names
        for part in embeddings.values():
            assert part.holders == (0, 1, 4, 5)
            assert part.pending == ((rank % 2, 4 + rank % 2),)
        for part in parts.values():
            if part.name != "embedding.weight":
                assert part.holders == (rank // 2 * 2, rank // 2 * 2 + 1)
                assert part.pending == ()


def test_both_ends_on_one_rank_have_one_embedding():
    """It stays tied through a copy of the parameters to another device or format."""
    model, parts = made(Layout(pp=2), 0, zero_bubble_v(2, 4))
    assert list(model) == ["0", "3"]
    assert model["3"].head.weight is model["0"].embedding.weight
    assert "3.head.weight" not in parts
    assert parts["0.embedding.weight"].holders == (0,)
    assert parts["0.embedding.weight"].pending == ()
    assert model.to_empty(device="cpu") is model
    assert model["3"].head.weight is model["0"].embedding.weight
    assert model["0"].embedding.weight.device.type == "cpu"
    model.double()
    assert model["3"].head.weight is model["0"].embedding.weight
    assert model["3"].head.weight.dtype == torch.float64
    other, parts = made(Layout(pp=2), 1, zero_bubble_v(2, 4))
    assert list(other) == ["1", "2"]
    assert not any("embedding" in name or "head" in name for name in parts)


def test_untied_ends_stay_apart():
    model, parts = made(Layout(pp=2), 0, zero_bubble_v(2, 4), UNTIED)
    assert model["3"].head.weight is not model["0"].embedding.weight
    assert parts["3.head.weight"].name == "head.weight"
    model.to_empty(device="cpu")
    assert model["3"].head.weight is not model["0"].embedding.weight


def test_a_single_stage_is_the_whole_model():
    model, parts = made(Layout(pp=1), 0, one_f_one_b(1, 2))
    assert [len(stage.blocks) for stage in model.values()] == [4]
    assert model["0"].head.weight is model["0"].embedding.weight
    assert not any(part.pending for part in parts.values())


def test_layers_are_shared_by_cost_and_the_ends_cost_too():
    """The embedding is cheap; the head of a large vocabulary costs as much as some layers."""

    def blocks(config, schedule, ranks, **cuts):
        found = {}
        for rank in range(ranks):
            model, _ = made(Layout(pp=ranks), rank, schedule, config, **cuts)
            found |= {int(name): [int(n) for n in stage.blocks] for name, stage in model.items()}
        return [found[number] for number in sorted(found)]

    assert blocks(TIED, gpipe(2, 2), 2) == [[0, 1], [2, 3]]
    large = GPTConfig(**SIZES | {"vocab": 400}, layers=4)
    assert blocks(large, gpipe(2, 2), 2) == [[0, 1, 2], [3]]
    tiny = GPTConfig(**SIZES | {"vocab": 1}, layers=3)  # a head that is cheaper than the embedding
    assert blocks(tiny, gpipe(2, 2), 2) == [[0], [1, 2]]
    six = GPTConfig(**SIZES, layers=6)
    assert blocks(six, interleaved(2, 2, chunks=3), 2) == [[0], [1], [2], [3], [4], [5]]
    mixed = GPTConfig(**SIZES, layers=4, hidden=500)
    assert blocks(mixed, gpipe(4, 2), 4) == [[0], [1], [2], [3]]
    assert blocks(large, gpipe(2, 2), 2, cuts=(1, 3)) == [[0], [1, 2, 3]]
    assert blocks(six, interleaved(2, 2, chunks=2), 2, cuts=(1, 3, 1, 1)) == [
        [0], [1, 2, 3], [4], [5]]  # fmt: skip


def test_pending_sums_of_the_stages_transform_stay():
    """A norm sees some of the tokens on each rank of tp; a tied embedding has both ends, too."""
    layout = Layout(pp=2, tp=2)

    class Mesh(Seat):
        def group(self, axis):
            return axis

    class Alone:
        size, rank = 2, 1

    def inner(*arguments):
        return sequence_parallel(*arguments, transport=lambda group: Alone())

    parts = pipeline(
        TIED, 0, Mesh(layout, 3), torch.float32, schedule=one_f_one_b(2, 2), inner=inner
    ).parts
    for name, part in parts.items():
        wanted = ((2, 3),) if "norm" in name else ((1, 3),) if "head" in name else ()
        assert part.pending == wanted, name
    assert parts["1.head.weight"].local_shape == (8, 8)  # of 17 rows, the first rank has 9


def test_a_schedule_that_does_not_fit():
    with pytest.raises(
        ValueError, match=r"1F1B is a schedule for 2 ranks, but .*\(pp=3\) has 3: .* for 3 ranks"
    ):
        made(Layout(pp=3), 0, one_f_one_b(2, 2))
    order = gpipe(2, 1).orders
    wrong = Schedule("edited", (0, 1), 1, (order[0][::-1], order[1]))
    with pytest.raises(ScheduleError, match="rank 0 computes B0 of stage 0 before F0"):
        made(Layout(pp=2), 0, wrong)
    with pytest.raises(ValueError, match="4 layers cannot fill 6 stages"):
        made(Layout(pp=2), 0, interleaved(2, 2, chunks=3))
    for cuts in ((), (4,), (2, 1), (2, 1, 1), (4, 0), (5, -1)):
        with pytest.raises(ValueError, match=r"4 layers in 2 stages, .*: \(.*\) is not such a cut"):
            made(Layout(pp=2), 0, gpipe(2, 2), cuts=cuts)
