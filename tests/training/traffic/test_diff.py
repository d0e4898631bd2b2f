"""Streams of messages, written by hand, are aligned by phase, kind and layer."""

import re

import pytest

from helpers.training.traffic.diff import Cell, Row, align
from helpers.training.traffic.message import Message

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
    assert (last["theirs"].sent, last["theirs"].payload, last["theirs"].messages) == (20, 40, 1)
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
    unknown = message(0, "forward", "", "activations", {"": 12})
    object.__setattr__(unknown, "wire", None)
    diff = align({"a": [unknown]}, LAYERS)
    assert diff.total("a") == diff.rows[0].cells["a"].sent == 12


def test_how_far_a_message_is_from_its_layer():
    layers = ["a", "b", "c", "d"]
    told = {}
    for phase, layer, during in (
        ("forward", "d", "a"), ("forward", "b", "b"), ("forward", "a", "c"), ("forward", "c", ""),
        ("backward", "a", "d"), ("backward", "d", "c"), ("update", "b", ""),
    ):  # fmt: skip
        for kind in ("parameters", "gradients"):
            diff = align({"x": [message(0, phase, during, kind, {layer: 8})]}, layers)
            told[phase, layer, kind] = diff.moment(diff.rows[0], diff.rows[0].cells["x"])
    assert told["forward", "d", "parameters"] == "3 layers before it"
    assert told["forward", "b", "parameters"] == "while the layer itself runs"
    assert told["forward", "a", "parameters"] == "2 layers after it"
    assert told["forward", "c", "parameters"] == "before the first layer"
    assert told["forward", "c", "gradients"] == "after the last layer"
    assert told["backward", "a", "gradients"] == "3 layers before it"
    assert told["backward", "a", "parameters"] == "3 layers before it"
    assert told["forward", "d", "gradients"] == "3 layers before it"
    assert told["backward", "d", "gradients"] == "1 layer after it"
    assert told["update", "b", "parameters"] == ""
    twice = message(0, "forward", "c", "parameters", {"a": 8})
    (row,) = align({"x": [message(0, "forward", "a", "parameters", {"a": 8}), twice]}, layers).rows
    assert row.cells["x"].during == ("a", "c")  # the first one counts
    two, one = [twice, twice], [message(0, "forward", "c", "parameters", {"a": 80})]
    assert align({"x": two, "y": one}, layers).bytes_apart() == [
        "Forward, parameters of a: x sends 8 bytes in 2 messages; y sends 40 bytes."
    ]


def test_the_summary_says_what_differs_and_nothing_else():
    assert DIFF.summary() == [
        "ours sends 148 bytes in 6 messages: 80 of parameters, 60 of gradients, 8 of other.",
        "theirs sends 180 bytes in 2 messages: 60 of parameters, 120 of gradients.",
        "Backward, parameters of last: ours sends 20 bytes; theirs sends none.",
        "Backward, gradients of last: ours sends 20 bytes; theirs sends 40 bytes.",
        "Backward, gradients of first: ours sends 40 bytes; theirs sends 80 bytes.",
        "Forward, parameters of first: ours while the layer itself runs; theirs before the first "
        "layer.",
        "Forward, parameters of last: ours 1 layer before it; theirs before the first layer.",
        "Backward, gradients of last, first: ours while the layer itself runs; theirs after the "
        "last layer.",
    ]
    assert len(align({"a": OURS, "b": OURS}, LAYERS).summary()) == 2


def test_bytes_that_are_almost_equal_do_not_differ():
    wide = message(0, "forward", "first", "parameters", {"first": 82})
    diff = align({"a": OURS[:1], "b": [wide]}, LAYERS)
    assert diff.bytes_apart() == []
    assert len(diff.bytes_apart(near=0.01)) == 1
    for sent, agrees in ((105.2, True), (105.3, False)):  # the share is of the larger number
        cells = {"a": Cell(sent=100.0), "b": Cell(sent=sent)}
        assert Row(phase="forward", kind="gradients", layer="x", cells=cells).agrees(0.05) == agrees


def test_it_draws_itself():
    html = DIFF._repr_html_()
    assert "theirs" in html
    assert html.count("<tr") == 7  # head, five rows, the sum
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", html)
    assert cells[:10] == [
        *("phase", "bytes of", "layer", "ours", "theirs"),
        *("forward", "parameters", "first", "40", "40"),
    ]
    assert cells[-5:] == ["step", "all", "", "148", "180"]
    frame = DIFF.frame()
    assert frame["ours"].tolist() == [40, 20, 20, 20, 40]
    assert frame["theirs"].tolist() == [40, 20, 0, 40, 80]
    assert "ours: 148 bytes in 6 messages" in repr(DIFF.plot())


def test_what_cannot_be_aligned():
    with pytest.raises(ValueError, match="no strategy to align"):
        align({}, LAYERS)
    with pytest.raises(ValueError, match="'last', which is none of the layers first"):
        align({"ours": OURS}, ["first"])
