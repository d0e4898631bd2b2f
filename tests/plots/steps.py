"""A small training step, as the records that pictures draw: messages, and the film's events."""

from types import SimpleNamespace

SIZES = {"embedding": 400, "blocks.0": 1200}


def message(phase, during, kind, layers, wire):
    return SimpleNamespace(phase=phase, during=during, kind=kind, layers=layers, wire=wire,
                           payload=2.0 * (wire or 10), call="all_reduce")  # fmt: skip


OURS = [
    message("forward", "a", "parameters", {"a": 80.0}, 40.0),
    message("forward", "a", "parameters", {"b": 40.0}, 20.0),
    message("backward", "b", "gradients", {"b": 40.0}, None),
    message("update", "", "other", {}, 8.0),
]
THEIRS = [
    message("forward", "", "parameters", {"a": 80.0, "b": 40.0}, 60.0),
    message("backward", "", "parameters", {"b": 40.0}, 20.0),
    message("backward", "", "parameters", {"b": 40.0}, 20.0),
    message("backward", "", "gradients", {"a": 80.0, "b": 40.0}, 60.0),
]


def event(time, unit, kind, state, nbytes):
    return {"time": time, "unit": unit, "kind": kind, "state": state, "bytes": nbytes}


def a_step():
    """Two units on two ranks: a forward with one unit gathered ahead, and the backward of one."""
    block = "blocks.0"
    return [
        *(event(0.0, unit, "parameters", "held", size // 2) for unit, size in SIZES.items()),
        event(0.001, "embedding", "gathered", "in use", 400),
        event(0.002, block, "gathered", "gathering", 1200),
        event(0.003, "embedding", "gathered", "freed", 0),
        event(0.003, block, "gathered", "in use", 1200),
        event(0.004, block, "gradients", "filling", 1200),
        event(0.005, block, "gathered", "freed", 0),
        event(0.006, block, "gradients", "sending", 1200),
        event(0.007, block, "gradient shard", "held", 600),
        event(0.007, block, "gradients", "freed", 0),
        event(0.008, block, "gradient shard", "freed", 0),
    ]
