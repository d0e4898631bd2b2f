"""Answers as bytes: plain data, as between ranks, and a few types of the course.

Functions of some exercises return actions of a schedule, for example. Such a value becomes the name
of its type and its fields. The reader makes only types of the list, out of plain fields.
"""

import dataclasses

import numpy as np
import torch

from helpers.check.traffic import Call
from helpers.check.watch import Event
from helpers.comm.mesh import Layout
from helpers.plans.schedules import Action, Message, Schedule
from helpers.runtime.plain import LENGTH, decode, encode


def fields_of(value) -> dict:
    """Return the arguments that make the value again."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


OWN = dict.fromkeys((Action, Message, Call, Event, Schedule), fields_of)
OWN[Layout] = lambda layout: dict(zip(layout.axes, layout.shape, strict=True))
LARGEST = 4 << 20  # bytes of an answer without its tensors: lists in lists take thirty times that


def pack(value, name: str = "the answer") -> bytes:
    """Return the value as bytes.

    Raises:
        CannotTravel: a part is no plain data.
    """
    return encode({name: value}, OWN)


def unpack(data: bytes):
    """Return the value. No code of the writer runs.

    Raises:
        ValueError: these bytes are no value.
    """
    if len(data) > LARGEST and LARGEST < LENGTH.unpack_from(data)[0] <= len(data):
        raise ValueError(f"it has more than {LARGEST:,} bytes besides tensors")
    return decode(data, OWN)[0]


def numbers_of(value):
    """Return the value with None for every part that holds no numbers: all that a function may
    have written into an argument, as far as a check looks at it."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(numbers_of, value))
    if type(value) is dict:
        return {key: numbers_of(one) for key, one in value.items() if isinstance(key, str | int)}
    return value if isinstance(value, bool | int | float | str) else None
