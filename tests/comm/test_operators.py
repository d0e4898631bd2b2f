"""Each operator's payload is the whole buffer of its call, whichever argument shows it.

The arguments are made by their names and types: an `output` of an all-gather is whole, its `input`
is one rank's part, and so on. The table is not asked which of them counts.
"""

import re
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers the operators of _c10d_functional

from helpers.comm.ledger import calls
from helpers.comm.operators import OPERATORS, SILENT
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")

RANKS, PART = 3, 4  # numbers of one rank's part
SCHEMAS = [
    schema
    for schema in torch._C._jit_get_all_schemas()
    if schema.name in OPERATORS and not schema.name.endswith(SILENT)
]
NAMES = (  # a part of the operator's name, its call, what holds the whole buffer
    ("all_?reduce", "all_reduce", "all"),
    ("all_?gather", "all_gather", "output"),
    ("reduce_scatter", "reduce_scatter", "input"),
    ("broadcast", "broadcast", "all"),
    ("all_?to_?all", "all_to_all", "all"),
    ("gather", "gather", "output"),
    ("scatter", "scatter", "input"),
    ("reduce_", "reduce", "all"),
    ("send", "send", "all"),
    ("recv", "recv", "all"),
    ("barrier", "barrier", "all"),
)


def expected(name: str) -> tuple[str, str]:
    return next(found for part, *found in NAMES if re.search(part, name.split("::")[1]))


def made(argument, whole: str) -> object:
    """A value of the argument's type; None if it has no tensors."""
    kind, output = str(argument.type), argument.name.startswith("out")
    is_whole = whole == "all" or (whole == "output") == output
    if kind == "Tensor":
        return torch.zeros(PART * RANKS if is_whole else PART)
    if kind == "List[Tensor]":  # several tensors are one payload
        return [torch.zeros(n) for n in ([PART] * RANKS if is_whole else [PART - 1, 1])]
    if kind == "List[List[Tensor]]":
        return [[torch.zeros(PART) for _ in range(RANKS)]]
    return None


def written(worker):
    found, name = [], dist.group.WORLD.group_name
    for schema in SCHEMAS:
        whole = expected(schema.name)[1]
        given = {argument.name: made(argument, whole) for argument in schema.arguments}
        given = {key: value for key, value in given.items() if value is not None}
        given["group_name"] = name
        [(entry, tensors)] = calls(SimpleNamespace(_schema=schema), (), given)
        found.append((schema.name, entry.call, entry.payload, len(tensors)))
    return found


def test_the_payload_is_the_whole_buffer():
    names = {schema.name for schema in SCHEMAS}
    assert {"c10d::allreduce_", "c10d::send", "_c10d_functional::all_reduce"} <= names
    for found in launch(written, RANKS, device="cpu"):
        for name, call, payload, tensors in found:
            assert call == expected(name)[0], name
            assert payload == (0 if call == "barrier" else 4 * PART * RANKS), name
            assert tensors or call == "barrier", name
