"""Streams of messages, written by hand, are aligned by phase, kind and layer."""

from dataclasses import replace

import pytest

from helpers.training.traffic.diff import Message, align

LAYERS = ["first", "last"]


def message(order, phase, during, kind, layers, wire=None, call="all_gather"):
    payload = float(sum(layers.values()))
    wire = payload / 2 if wire is None else wire
    return Message(order=order, call=call, kind=kind, phase=phase, during=during, layers=layers,
                   payload=payload, wire=wire, ranks=2)  # fmt: skip


OURS = [
    message(0, "forward", "first", "parameters", {"first": 80}),
    message(1, "forward", "first", "parameters", {"last": 40}),
    message(2, "backward", "last", "parameters", {"last": 40}),
    message(3, "backward", "last", "gradients", {"last": 40}, call="reduce_scatter"),
    message(4, "backward", "first", "gradients", {"first": 80}, call="reduce_scatter"),
    message(5, "update", "", "other", {}, wire=8.0, call="all_reduce"),
]
THEIRS = [
    message(0, "forward", "", "parameters", {"first": 80, "last": 40}),
    message(1, "backward", "", "gradients", {"last": 40, "first": 80}, 120.0, "reduce_scatter"),
]
DIFF = align({"ours": OURS, "theirs": THEIRS}, LAYERS)


def test_rows_are_in_the_order_of_a_step():
    assert [(row.phase, row.kind, row.layer) for row in DIFF.rows] == [
        ("forward", "parameters", "first"),
        ("forward", "parameters", "last"),
        ("backward", "parameters", "last"),
        ("backward", "gradients", "last"),
        ("backward", "gradients", "first"),
    ]


def test_cells_have_each_layer_s_share_of_the_bytes():
    first, last, again, gradient, _ = (row.cells for row in DIFF.rows)
    assert (first["ours"].sent, first["theirs"].sent) == (40, 40)
    assert (last["theirs"].sent, last["theirs"].messages) == (20, 1)
    assert (last["ours"].during, last["theirs"].during) == (("first",), ("",))
    assert (again["ours"].sent, again["theirs"].sent, again["theirs"].messages) == (20, 0, 0)
    assert (gradient["ours"].sent, gradient["theirs"].sent) == (20, 40)


def test_messages_of_one_layer_add_up():
    twice = align({"ours": [OURS[1], OURS[1]]}, LAYERS)
    (row,) = twice.rows
    assert (row.cells["ours"].messages, row.cells["ours"].sent) == (2, 40)


def test_what_has_no_layer_is_before_the_first_one():
    """So it is first in the forward, and last in the backward."""
    layers = {"last": 8, "": 8, "first": 8}
    both = [message(0, phase, "", "parameters", layers) for phase in ("backward", "forward")]
    rows = [(row.phase, row.layer) for row in align({"x": both}, LAYERS).rows]
    forward = ["", "first", "last"]
    assert rows == [*(("forward", layer) for layer in forward),
                    *(("backward", layer) for layer in forward[::-1])]  # fmt: skip


def test_totals():
    assert DIFF.total("ours") == 40 + 20 + 20 + 20 + 40 + 8
    assert DIFF.total("ours", kind="gradients") == 60
    assert DIFF.total("theirs", phase="backward") == 120
    for wire, sent in ((None, 12), (0.0, 0)):  # unknown, or nothing
        one = replace(message(0, "forward", "", "activations", {"": 12}), wire=wire)
        diff = align({"a": [one]}, LAYERS)
        assert diff.total("a") == diff.rows[0].cells["a"].sent == sent


def test_it_draws_itself():
    frame = DIFF.frame()
    assert list(frame) == ["phase", "kind", "layer", "ours", "theirs"]
    assert frame["ours"].tolist() == [40, 20, 20, 20, 40]
    assert frame["theirs"].tolist() == [40, 20, 0, 40, 80]
    assert "ours: 148 bytes in 6 messages" in repr(DIFF.plot())


def test_what_cannot_be_aligned():
    with pytest.raises(ValueError, match="no strategy to align"):
        align({}, LAYERS)
    with pytest.raises(ValueError, match="'last', which is none of the layers first"):
        align({"ours": OURS}, ["first"])


@pytest.mark.parametrize(("wire", "first", "second"), [(32.0, 8, 24), (None, 12, 36), (0.0, 0, 0)])
def test_the_wire_is_divided_as_the_payload_is(wire, first, second):
    """An unknown wire counts as the payload; a wire of nothing is nothing."""
    one = replace(message(0, "forward", "", "parameters", {"0": 12.0, "1": 36.0}), wire=wire)
    assert one.sent() == {"0": first, "1": second}
