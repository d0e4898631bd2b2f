"""The table has every operator of PyTorch, and the argument that shows the payload."""

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
REGISTERED = torch._C._jit_get_all_schemas()
SCHEMAS = [schema for schema in REGISTERED if schema.name in OPERATORS]
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
    """The arguments are made by their names: of an all-gather the `output` is whole, and so on."""
    names = {schema.name for schema in SCHEMAS}
    assert {"c10d::allreduce_", "c10d::send", "_c10d_functional::all_reduce"} <= names
    for found in launch(written, RANKS, device="cpu"):
        for name, call, payload, tensors in found:
            assert call == expected(name)[0], name
            assert payload == (0 if call == "barrier" else 4 * PART * RANKS), name
            assert tensors or call == "barrier", name


def test_the_table_names_operators_as_pytorch_does():
    """It has each operator of the installed PyTorch, with an argument that exists."""
    schemas = {
        schema.name: {argument.name for argument in schema.arguments}
        for schema in REGISTERED
        if schema.name.startswith(("c10d::", "_c10d_functional::"))
    }
    for name, arguments in schemas.items():
        if name.endswith((*SILENT, "::batch_p2p_ops")):
            continue
        _, held = OPERATORS[name]
        assert not held or held.removesuffix(" ×N") in arguments, name
        assert arguments & {"process_group", "group_name"}, name


def test_operators_that_send_nothing_are_few():
    """They wait, check, wrap, write their own memory, or exchange addresses once."""
    names = {"wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "_rendezvous"}
    names |= {"_async_input_mm", "memset32_", "stream_write_value32_"}
    spaces = ("c10d::", "_c10d_functional::", "symm_mem::", "_dtensor::")
    for schema in REGISTERED:
        if schema.name.startswith(spaces):
            silent = schema.name.endswith(SILENT)
            assert silent == (schema.name.split("::")[1] in names), schema.name
