"""The committed notebooks read well on the web: executed, clean, small, ready as slides."""

import ast
import base64
import inspect
import json
import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("week*.ipynb")) + sorted(
    (ROOT / "notebooks").glob("project/*.ipynb")
)
PNG_BYTES = 60_000
CELL_LINES = 30
STARTS = {"launch", "compare", "Cluster"}
SLIDES = {"slide", "subslide", "fragment", "skip", "notes", "-"}
EMBEDDED = re.compile(r"data:image/png;base64,([^'\"]+)")
FIRST_USE = "compiling an extension"  # what a rank prints once on each machine
MACHINE_PATH = re.compile(r"(?<![\w./~])/(?:tmp|home|root|Users|private|var/folders)/[\w.-]+")

pytestmark = [
    pytest.mark.skipif(not NOTEBOOKS, reason="no notebooks yet"),
    pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem),
]


def code(path):
    """(index, cell) of each code cell with code."""
    cells = nbformat.read(path, as_version=4).cells
    return [(i, c) for i, c in enumerate(cells) if c.cell_type == "code" and c.source.strip()]


def outputs(path):
    """(index of the cell, its tags, output) of each output."""
    for index, cell in code(path):
        for output in cell.outputs:
            yield index, cell.metadata.get("tags", []), output


def pngs(data):
    """The pictures of an output, in base64: its own, and those inside its HTML (folded ones)."""
    inside = EMBEDDED.findall(data.get("text/html", ""))
    return [*([data["image/png"]] if "image/png" in data else []), *inside]


def test_valid(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert raw["nbformat"] == 4
    nbformat.validate(raw)
    ids = [cell.get("id") for cell in raw["cells"]]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def test_executed_in_order(path, tool):
    counts = [cell.execution_count for _, cell in code(path)]
    assert counts == list(range(1, len(counts) + 1)), "run `make notebooks`"
    assert any(cell.outputs for _, cell in code(path))


def test_outputs_belong_to_the_code(path, tool):
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.get("executed") == {"sources": tool.digest(nb)}, "run `make notebooks`"


def test_no_error_that_is_not_meant(path):
    errors = [
        (index, output.ename)
        for index, tags, output in outputs(path)
        if output.output_type == "error" and "raises-exception" not in tags
    ]
    assert errors == []


def test_nothing_of_this_run_or_machine(path):
    nb = nbformat.read(path, as_version=4)
    assert "widgets" not in nb.metadata
    assert [i for i, cell in enumerate(nb.cells) if "execution" in cell.metadata] == []
    text = [(i, cell.source) for i, cell in enumerate(nb.cells)]
    for index, _, output in outputs(path):
        texts = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/png")}
        stream = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
        text.append((index, "\n".join([*stream, *map(str, texts.values())])))
    # Colours end in a letter that would hide the start of a path.
    text = [(i, re.sub(r"\x1b\[[\d;]*m", " ", t)) for i, t in text]
    found = [(i, hit[0]) for i, t in text for hit in MACHINE_PATH.finditer(t)]
    found += [(i, here) for i, t in text for here in (str(ROOT), FIRST_USE) if here in t]
    assert found == []


def test_pictures_are_small(path):
    sizes = [
        (index, len(base64.b64decode(png)))
        for index, _, output in outputs(path)
        for png in pngs(output.get("data", {}))
    ]
    assert [pair for pair in sizes if pair[1] > PNG_BYTES] == []


def test_cells_are_short(path):
    lines = [(index, len(cell.source.splitlines())) for index, cell in code(path)]
    assert [pair for pair in lines if pair[1] > CELL_LINES] == []


def test_ranks_that_leave_gpus_idle_are_announced(path):
    """And an announcement without exceptions holds: every call that starts ranks names a device."""
    opening = nbformat.read(path, as_version=4).cells[0].source
    told = "the ranks use the CPU and gloo" in opening
    if any('device="cpu"' in cell.source for _, cell in code(path)):
        assert told
    if told and "except" not in opening:
        assigned = {}
        for index, cell in code(path):
            nodes = list(ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))))
            for n in nodes:
                if isinstance(n, ast.Assign | ast.AugAssign):
                    target = n.targets[0] if isinstance(n, ast.Assign) else n.target
                    assigned[ast.unparse(target)] = n
            calls = [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) in STARTS]
            assert ["device" in said(call, assigned) for call in calls].count(False) == 0, index


def said(call, assigned):
    """The call's words, with those of each `**options`."""
    names = {n.id for word in call.keywords if word.arg is None for n in ast.walk(word.value)
             if isinstance(n, ast.Name)}  # fmt: skip
    return " ".join(map(ast.unparse, [call, *(assigned[n] for n in names & assigned.keys())]))


def test_every_cell_has_its_place_on_slides(path):
    cells = nbformat.read(path, as_version=4).cells
    kinds = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in cells]
    assert [(i, kind) for i, kind in enumerate(kinds) if kind not in SLIDES] == []


def test_a_shown_source_is_that_of_the_package(path):
    """A cell that shows a function keeps its source as an output: until the function changes."""
    names = {}
    for index, cell in code(path):
        for line in ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))):
            if isinstance(line, ast.ImportFrom) and line.module.startswith("helpers"):
                exec(ast.unparse(line), names)
        if match := re.search(r"^ *show\((.+)\)$", cell.source, re.MULTILINE):
            source = inspect.getsource(eval(match[1], names))
            texts = [out.data["text/plain"] for out in cell.outputs if "text/latex" in out.data]
            assert [text.strip() for text in texts] == [source.strip()], f"cell {index}"
