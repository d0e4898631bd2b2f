"""What a rank sends of a message, by layer."""

import pytest

from helpers.training.traffic.message import KINDS, PHASES, Message


def message(**changes):
    plain = {"order": 0, "call": "all_gather", "kind": "parameters", "phase": "forward"}
    return Message(**plain | {"during": "", "payload": 48, "wire": 32.0, "ranks": 3} | changes)


@pytest.mark.parametrize(("wire", "first", "second"), [(32.0, 8, 24), (None, 12, 36), (0.0, 0, 0)])
def test_the_wire_is_divided_as_the_payload_is(wire, first, second):
    """An unknown wire counts as the payload; a wire of nothing is nothing."""
    sent = message(wire=wire, layers={"0": 12.0, "1": 36.0}).sent()
    assert sent == {"0": first, "1": second}


def test_a_message_of_no_layer_sends_nothing_for_any():
    assert message(kind="other").sent() == {}


def test_a_step_passes_forward_first():
    assert PHASES == ("forward", "backward", "update")
    assert KINDS[-1] == "other"
