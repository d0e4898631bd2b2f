"""The placement checker: right forwards pass, and each wrong one is named before it sends."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from helpers.comm.ledger import ledger
from helpers.comm.mesh import Layout, make_mesh
from helpers.comm.regions import reduce_from
from helpers.comm.transport import GroupTransport
from helpers.models.gpt import GPTConfig
from helpers.parallel.tensor.checker import Log, check_placements, place, placement_from
from helpers.parallel.tensor.rules import PARTIAL, WHOLE
from helpers.parallel.tensor.transform import sequence_parallel, tensor_parallel
from helpers.parallel.trainer import Recipe
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch
from helpers.state.placing import Seat, cut, whole

pytestmark = pytest.mark.usefixtures("kept_ranks")
SIZES = {"vocab": 33, "context": 12, "width": 16, "layers": 2, "heads": 4}
CONFIGS = {
    "bytes": GPTConfig(**SIZES),
    "GPT-2": GPTConfig(
        **SIZES, norm="layer", positions="learned", mlp="gelu", bias=True, attention="explicit"
    ),
    "grouped, dropout": GPTConfig(
        **SIZES, kv_heads=2, tied=False, dropout=0.1, attention="explicit"
    ),
}


def checked(worker, transform, config):
    mesh = make_mesh(Layout(tp=worker.world_size))
    trainer = Recipe(transform=partial(transform, overlap=False))(config, 0, mesh)
    trainer.model.train(config.dropout > 0)
    log = check_placements(trainer.model, trainer.owner.world.own, torch.zeros(2, 12).long())
    assert trainer.model.training == (config.dropout > 0)  # as before
    return {"rows": log.rows, "text": repr(log), "html": log._repr_html_()}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("transform", [tensor_parallel, sequence_parallel])
def test_the_course_s_own_transforms_pass(transform, config):
    run = launch(checked, 2, device="cpu", transform=transform, config=config)[0]
    sums = [row for row in run["rows"] if row[1] == "partial" and row[0].startswith("reduce")]
    assert len(sums) == 1 + 2 * config.layers  # the embedding, and two a block
    assert run["rows"][-1][:3] == ("linear", "whole, cut(0)", "cut(2)")  # the logits
    assert "silu" in run["text"] or "gelu" in run["text"]
    assert "<table" in run["html"]


LOG, B, T, D, F = Log(), 2, 4, 6, 8


def test_tensors_are_found_by_name_and_in_lists():
    log = Log()
    x, up = place(torch.randn(B, T, D), WHOLE, log), place(torch.randn(F, D), 0, log)
    assert functional.linear(x, weight=up).placement == 2
    assert torch.cat([x, x], 1).shape == (B, 2 * T, D)
    parts = place(torch.randn(B, T, D), 1, log).chunk(2, dim=-1)
    assert [part.placement for part in parts] == [1, 1]
    assert torch.equal(x, x)
    assert log.rows == [
        ("linear", "whole, cut(0)", "cut(2)", (B, T, F)),
        ("cat", "whole, whole", "whole", (B, 2 * T, D)),
        ("chunk", "cut(1)", "cut(1)", (B, T, D // 2)),
        ("equal", "whole, whole", "whole", ()),
    ]


def test_a_log_shows_its_columns_in_order():
    log = Log([("linear", "whole, cut(0)", "cut(2)", (2, 4, 8)), ("gelu", "cut(2)", "cut(2)", ())])
    assert [line.split() for line in repr(log).splitlines()] == [
        ["linear", "whole,", "cut(0)", "->", "cut(2)", "(2,", "4,", "8)"],
        ["gelu", "cut(2)", "->", "cut(2)", "()"],
    ]
    html = log._repr_html_()
    words = ["operation", "inputs", "result", "local shape", "linear", "whole, cut(0)", "(2, 4, 8)"]
    places = [html.index(f">{word}<") for word in words]
    assert places == sorted(places)
    assert Log().rows is not Log().rows


def test_a_placed_tensor_shares_the_numbers_and_needs_a_gradient_as_before():
    for wants in (True, False):
        local = torch.randn(2, 3, requires_grad=wants)
        made = place(local, 0, LOG)
        assert made.requires_grad == wants
        assert made.is_leaf
        assert made.as_subclass(torch.Tensor).data_ptr() == local.data_ptr()


def test_a_size_is_no_operation():
    log = Log()
    x = place(torch.randn(B, T, D), PARTIAL, log)
    assert (x.dim(), x.size(1), x.numel(), len(x), tuple(x.shape)) == (
        3,
        T,
        B * T * D,
        B,
        (B, T, D),
    )
    assert x.dtype == torch.float32
    assert log.rows == []


def test_a_negative_dim_is_counted_from_the_end():
    assert place(torch.randn(B, T, D), -1, LOG).placement == 2


def test_a_parameter_is_placed_by_the_cuts_of_its_axis():
    seat = Seat(Layout(dp=2, tp=2), 1)
    part = whole(seat, "weight", (4, 6))
    for axis, other in (("tp", "dp"), ("dp", "tp")):
        assert placement_from(cut(seat, part, 1, axis, None), axis) == 1
        assert placement_from(cut(seat, part, 1, other, None), axis) == WHOLE
        both = cut(seat, cut(seat, part, 1, other), 1, axis)
        assert placement_from(both, axis) == placement_from(both, other) == 1
        apart = cut(seat, cut(seat, part, 1, other), 0, axis)
        assert (placement_from(apart, axis), placement_from(apart, other)) == (0, 1)


def test_numbers_are_those_of_the_local_tensors():
    left, right = torch.randn(3, 4), torch.randn(4, 5)
    found = place(left, WHOLE, LOG) @ place(right, 1, LOG)
    assert torch.equal(found.as_subclass(torch.Tensor), left @ right)
    assert found.placement == 1


def wrong_on_ranks(worker):
    transport = GroupTransport()
    with ledger() as log:
        up = place(torch.randn(F // 2, D), 0, LOG)
        hidden = functional.linear(place(torch.randn(B, T, D), WHOLE, LOG), up)
        try:
            reduce_from(hidden, transport)
        finally:
            assert not log.entries  # nothing was sent


def test_the_error_comes_before_any_message():
    with pytest.raises(WorkerError, match="it is no partial sum") as caught:
        launch(wrong_on_ranks, 2, device="cpu")
    assert "reduce_from(hidden, transport)" in caught.value.traceback
