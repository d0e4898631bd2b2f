"""The table of the libraries' licences."""

import re
import sys
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.conftest import ci
from tests.test_environment import pins

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / ".ci" / "licences.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\w.-]+) \| ([\w.]+) \| (.+) \|$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def tool():
    return ci("licences")


def metadata(**fields):
    message = Message()
    for name, values in fields.items():
        for value in [values] if isinstance(values, str) else values:
            message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License_Expression": "MIT AND Zlib", "License": "other"}, "MIT AND Zlib"),
        ({"Classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License",
                         "License :: OSI Approved :: BSD License", "Topic :: Software"]},
         "BSD License, MIT License"),
        ({"License": "Apache 2.0\n\nthe whole text"}, "Apache 2.0"),
        ({"License": " \n Zlib \n"}, "Zlib"),
        ({"License": "x" * 60}, "x" * 60),
        ({"License": "x" * 61}, "x" * 59 + "…"),
        ({"License": "free", "Classifier": ["License :: OSI Approved"]}, "free"),
        ({"License": "UNKNOWN"}, "not declared"),
        ({}, "not declared"),
    ],
)  # fmt: skip
def test_what_a_library_declares(tool, fields, expected):
    assert tool.licence(metadata(**fields)) == expected


class Found:
    def __init__(self, name, version, declared):
        self.metadata, self.version = metadata(Name=name, License=declared), version


@pytest.mark.parametrize(
    ("declared", "row", "says"),
    [("MIT | BSD", "MIT / BSD", ""), ("", "not declared", "; look up by hand: Zeta")],
)
def test_the_table_has_a_row_for_each_library(tool, monkeypatch, tmp_path, capsys,
                                              declared, row, says):  # fmt: skip
    """Versions without the build, licences without a bar, rows by name."""
    here = [Found("torch", "2.9.0+cpu", "BSD-3"), Found("Zeta", "1.0", declared)]
    here += [Found("training_at_scale", "0.1", "MIT"), Found("pip", "25", "MIT")]
    monkeypatch.setattr(tool, "distributions", lambda: here)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "TABLE", tmp_path / "table.md")
    assert tool.main() == 0
    assert capsys.readouterr().out == f"table.md: 2 libraries{says}\n"
    rows = ["| torch | 2.9.0 | BSD-3 |\n", f"| Zeta | 1.0 | {row} |\n"]
    assert (tmp_path / "table.md").read_text("utf-8") == tool.HEAD + "".join(rows)


def test_every_pinned_library_is_in_the_table_with_its_version():
    rows = {canonicalize_name(name): version for name, version, _ in ROWS}
    assert {name: rows.get(name) for name in pins()} == {n: str(v) for n, v in pins().items()}
    assert len(ROWS) > 150
    assert "training-at-scale" not in rows
    assert not [name for name, _, declared in ROWS if not declared.strip()]


def test_the_table_is_that_of_the_lock():
    if not (Path(sys.prefix) / "locked").exists():
        pytest.skip("not the libraries of the lock")
    in_table = {canonicalize_name(name) for name, _, _ in ROWS}
    here = {canonicalize_name(found.metadata["Name"]) for found in distributions()}
    brought = re.compile("nvidia-.*|cuda-.*|triton")  # by a build of PyTorch
    missing = {name for name in here - in_table if not brought.fullmatch(name)}
    assert missing == {"training-at-scale", "pip"}
