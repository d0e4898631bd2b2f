"""Files that students hand in, and what else lies in a folder under such a name."""

import json
import os
import threading

import pytest

from helpers.check.grading import definitions as reading
from helpers.check.grading.definitions import NotANotebook, read


def notebook(path, *cells):
    cells = [{"cell_type": "code", "metadata": {}, "source": cell} for cell in cells]
    path.write_text(json.dumps({"cells": cells}))
    return path


def refused(path) -> str:
    with pytest.raises(NotANotebook) as caught:
        read(path)
    return str(caught.value)


def test_a_notebook(tmp_path, monkeypatch):
    """The instructor's environment does not reach the program that reads it."""
    monkeypatch.setenv("PYTHONHASHSEED", "Python would not start with it")
    found = read(notebook(tmp_path / "a.ipynb", "def f():\n    'ü'", "print(1)", "def g(:"))
    assert (found.sources, found.functions) == (["def f():\n    'ü'"], ["f"])
    assert list(found.broken) == ["g"]
    assert (found.binds, found.uses) == ([["f"]], [[]])


def test_what_is_no_file(tmp_path):
    mine = notebook(tmp_path / "mine.ipynb", "def f(): pass")
    (tmp_path / "link.ipynb").symlink_to(mine)
    (tmp_path / "zero.ipynb").symlink_to("/dev/zero")
    (tmp_path / "folder.ipynb").mkdir()
    os.mkfifo(tmp_path / "pipe.ipynb")  # opened as usual, it would wait for a writer
    before = sorted(os.listdir("/dev/fd"))
    assert refused(tmp_path / "link.ipynb") == "a link is no notebook"
    assert "link" in refused(tmp_path / "zero.ipynb")
    assert "no file" in refused(tmp_path / "folder.ipynb")
    found, pipe = [], tmp_path / "pipe.ipynb"
    thread = threading.Thread(target=lambda: found.append(refused(pipe)), daemon=True)
    thread.start()
    thread.join(10)
    assert "no file" in found[0]
    assert refused(tmp_path / "none.ipynb") == "not readable: No such file or directory"
    assert sorted(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("content", [b"", b"{", bytes(range(256)), b"[" * 100_000])
def test_what_is_no_notebook(tmp_path, content):
    (tmp_path / "n.ipynb").write_bytes(content)
    assert "no notebook" in refused(tmp_path / "n.ipynb")


def test_a_file_that_is_too_large(tmp_path, monkeypatch):
    assert reading.LARGEST_FILE == 256 << 20  # with pictures in it
    monkeypatch.setattr(reading, "LARGEST_FILE", 100)
    assert refused(notebook(tmp_path / "n.ipynb", "x = 1" * 100)) == (
        "the file has more than 100 bytes"
    )
    (tmp_path / "n.ipynb").write_bytes(bytes(100))
    assert reading.content_of(tmp_path / "n.ipynb") == bytes(100)
    (tmp_path / "n.ipynb").write_bytes(bytes(101))
    assert "more than 100 bytes" in refused(tmp_path / "n.ipynb")


def test_outputs_do_not_count_and_code_does(tmp_path):
    path, code = notebook(tmp_path / "n.ipynb", "def f(): pass"), "x = 1\n"
    whole = json.loads(path.read_text())
    whole["cells"][0]["outputs"] = [{"data": {"image/png": "A" * 25_000_000}}]
    path.write_text(json.dumps(whole))
    assert read(path).functions == ["f"]
    content = json.dumps({"cells": [{"cell_type": "code", "source": code * 4_000_000}]})
    path.write_text(content)
    assert refused(path) == "the code has more than 20,000,000 characters"


def test_a_text_that_nests_too_deeply_for_python(tmp_path):
    found = read(notebook(tmp_path / "n.ipynb", "x = " + "-" * 3_000_000 + "1", "def f(): pass"))
    assert found.functions == ["f"]


def test_a_hundred_thousand_cells(tmp_path):
    cells = [f"def f{k}(): return {k}" for k in range(100_000)]
    assert len(read(notebook(tmp_path / "n.ipynb", *cells)).functions) == 100_000


def test_a_reader_that_does_not_end_is_ended(tmp_path, monkeypatch):
    program = tmp_path / "slow"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(0o755)
    monkeypatch.setattr(reading, "SECONDS", 0.1)
    monkeypatch.setattr(reading.sys, "executable", str(program))
    assert "too long to read" in refused(notebook(tmp_path / "n.ipynb", "x = 1"))


def test_when_the_reader_is_killed_the_judge_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(reading.sys, "executable", "/bin/false")
    assert "nests too deeply" in refused(notebook(tmp_path / "n.ipynb", "x = 1"))
