"""The tool that executes notebooks: on small made ones, in a folder of their own."""

import base64
import itertools
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.conftest import ROOT, ci


@pytest.fixture
def root(tmp_path):
    tmp_path.joinpath("notebooks").mkdir()
    return tmp_path


def write(root, *sources, name="week01_trial", tags=()):
    """A notebook of these code cells; the last one gets the tags."""
    cells = [new_markdown_cell("# A trial"), *map(new_code_cell, sources)]
    cells[-1].metadata.tags = list(tags)
    path = root / "notebooks" / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def read(path):
    return nbformat.read(path, as_version=4)


def text(path):
    """All that the cells of a notebook printed or raised."""
    found = [o for cell in read(path).cells for o in cell.get("outputs", [])]
    return "\n".join("\n".join([o.get("text", ""), *o.get("traceback", [])]) for o in found)


def test_course_executes_a_copy_and_leaves_the_notebook_alone(tool, root, capsys, monkeypatch):
    kernel = root / "kernels" / "python3" / "kernel.json"  # what this machine calls python3
    kernel.parent.mkdir(parents=True)
    kernel.write_text('{"argv": ["/bin/false"], "display_name": "", "language": ""}')
    monkeypatch.setenv("JUPYTER_PATH", str(root))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    where = "import os, sys; print('ran on', sys.prefix)\nprint(os.environ['PATH'].split(':')[0])"
    path = write(root, "import os; print(6 * 7, os.environ['HF_HUB_OFFLINE'])", where)
    before = path.read_bytes()
    tool.main(["course"], root)
    executed = text(root / "build" / "executed" / "week01_trial.ipynb")
    assert "42 1" in executed  # the Hub is not asked
    assert executed.endswith("ran on .venv\n.venv/bin\n")  # programs are those of this Python
    (printed,) = read(root / "build" / "executed" / path.name).cells[2].outputs  # in one piece
    assert printed.name == "stdout"
    assert path.read_bytes() == before
    assert re.search(r"week01_trial.ipynb  cell 0/2  0 s", out := capsys.readouterr().out)
    assert re.search(r"week01_trial.ipynb  cell 2/2  \d+ s\n", out)


@pytest.fixture
def without_kernel(tool, monkeypatch):
    """Each run prints another number below each cell."""
    numbers = itertools.count()

    def run(nb, path):
        for cell in tool.code_cells(nb):
            cell.outputs = [new_output("stream", text=str(next(numbers)))]

    monkeypatch.setattr(tool, "run", run)


@pytest.mark.usefixtures("without_kernel")
def test_only_named_notebooks_are_run(tool, root):
    write(root, "1")
    write(root, "2", name="week02_other")
    tool.main(["course", "week02"], root)
    executed = root / "build" / "executed"
    assert [p.name for p in executed.iterdir()] == ["week02_other.ipynb"]
    with pytest.raises(SystemExit, match="no notebook's name contains 'week03'"):
        tool.main(["course", "week02", "week03"], root)


@pytest.mark.usefixtures("without_kernel")
def test_execute_runs_what_changed_and_nothing_else(tool, root, capsys):
    path = write(root, "1")
    tool.main(["execute"], root)
    first, ids = path.read_bytes(), [cell.id for cell in read(path).cells]
    tool.main(["execute"], root)
    assert path.read_bytes() == first
    assert "unchanged" in capsys.readouterr().out

    nb = read(path)
    nb.cells[0].source = "# Another title needs no run"
    nbformat.write(nb, path)
    tool.main(["execute"], root)
    assert read(path).cells[1].outputs == nb.cells[1].outputs

    tool.main(["execute", "--all", "week01"], root)
    again = read(path)
    assert again.cells[1].outputs != nb.cells[1].outputs
    assert [cell.id for cell in again.cells] == ids

    again.cells[1].source += "  # edited"
    nbformat.write(again, path)
    tool.main(["execute"], root)
    assert read(path).cells[1].outputs != again.cells[1].outputs


def test_a_failing_cell_is_named_and_the_file_left_alone(tool, root):
    path = write(root, "x = 1", "def divide():\n    return x / 0\n", "divide()", "", "2")
    before = path.read_bytes()
    with pytest.raises(SystemExit) as stop:
        tool.main(["execute"], root)
    assert "week01_trial.ipynb, In [3], failed:" in str(stop.value)
    assert "ZeroDivisionError" in str(stop.value)
    assert "\x1b" not in str(stop.value)  # no terminal, no colours
    assert path.read_bytes() == before
    path = write(root, "import os", "os._exit(1)", "2")  # the kernel dies
    with pytest.raises(SystemExit, match=r"In \[2\], failed"):
        tool.main(["course"], root)


def test_a_cell_may_be_meant_to_fail_and_what_a_machine_adds_is_stripped(tool, root):
    path = write(
        root,
        f"print('{root}/helpers/launch.py and {root}'); print('{root}s')",
        "import ipywidgets; ipywidgets.IntSlider()",
        "import warnings; warnings.warn('look')",
        "from pathlib import Path; print(sorted(Path().glob('*.ipynb')))",
        "import json; json.loads('{')",
        tags=["raises-exception"],
    )
    nb = read(path)
    nb.cells[1].metadata |= {"ExecuteTime": {"end_time": "today"}, "execution": {"iopub": "now"}}
    nbformat.write(nb, path)
    tool.main(["execute"], root)
    nb = read(path)
    assert "widgets" not in nb.metadata
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.metadata.language_info == {"name": "python"}
    assert nb.metadata.executed == {"sources": tool.digest(nb)}
    assert [set(cell.metadata) - {"tags"} for cell in nb.cells] == [set()] * 6
    assert nb.cells[2].outputs == []  # a widget without its state is a broken picture
    assert "<cell>:1: UserWarning: look" in text(path)
    assert path.name in text(path)  # the kernel starts in the folder of the notebook
    assert "./helpers/launch.py and ." in text(path)
    assert f"{root}s" in text(path)  # another folder, whose name only starts alike
    plain = re.sub(r"\x1b\[[\d;]*m", "", text(path))
    assert "JSONDecodeError" in plain
    assert "lib/python/json/" in plain
    assert str(Path(json_folder()).parent) not in plain


def json_folder():
    import json

    return Path(json.__file__).parent


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("/tmp/ipykernel_12/345.py:3: Warning", "<cell>:3: Warning"),
        ("/var/folders/x/T/ipykernel_12/345.py:3: Warning", "<cell>:3: Warning"),
        (f"{Path.home()}/secrets", "~/secrets"),
        (f"{sys.prefix}/lib/x.py", ".venv/lib/x.py"),
        ("<Thing object at 0x7f00aa>", "<Thing object at 0x…>"),
        ("the address 0x7f00aa", "the address 0x7f00aa"),
    ],
)
def test_neutral(tool, raw, clean):
    assert tool.neutral(raw, Path("/some/where/else")) == clean


def test_of_a_folder_inside_another_its_own_name_is_shown(tool):
    course = Path(sys.prefix).parent
    assert tool.neutral(f"{sys.prefix}/lib/x.py {course}/x.py", course) == ".venv/lib/x.py ./x.py"


def test_a_cell_has_limited_time(tool, root, monkeypatch):
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"--nbval-cell-timeout={tool.CELL_SECONDS}\n" in settings  # as in the tests
    monkeypatch.setattr(tool, "CELL_SECONDS", 1)
    write(root, "import time; time.sleep(30)")
    with pytest.raises(SystemExit, match=r"In \[1\], failed"):
        tool.main(["course"], root)


def test_a_large_picture_is_an_error(tool, root):
    nb = new_notebook(cells=[new_markdown_cell("# A"), new_code_cell(" "), new_code_cell("plot()")])
    png = base64.b64encode(bytes(61_000)).decode()
    nb.cells[2].outputs = [new_output("display_data", {"image/png": png})]
    with pytest.raises(SystemExit, match=r"In \[1\]: a picture of 61 kB"):
        tool.strip(nb, root)


def test_pictures_keep_their_size_and_words_and_answers_stay_folded(tool, root):
    nb = new_notebook(cells=[new_markdown_cell("# A"), new_code_cell("plot()")])
    png = base64.b64encode(b"\x89PNG").decode()
    words = f"A curve of '{root}/data' & <b>more</b>"
    about = {"image/png": {"width": 300, "height": 200, "alt": words}}
    folded = "<details><summary>predict first, then open</summary>42</details>"
    nb.cells[1].outputs = [
        new_output("display_data", {"image/png": png}, metadata=about),
        new_output("display_data", {"text/html": folded}),
        new_output("display_data", {"image/png": png}),
    ]
    tool.strip(nb, root)
    picture, answer, plain = nb.cells[1].outputs
    assert plain.metadata == {}
    kept = {"width": 300, "height": 200, "alt": "A curve of './data' & <b>more</b>"}
    assert picture.metadata == {"image/png": kept}
    assert answer.data["text/html"] == folded


def test_each_kind_of_output_becomes_neutral(tool, root):
    cell = new_code_cell("x")
    data = {"text/html": f"<p>{root}/a</p>", "image/svg+xml": f"{root}/b", "text/plain": f"{root}"}
    error = {"ename": "E", "evalue": f"no {root}/c", "traceback": [f"{root}/d", f"{root}/e"]}
    script = {"application/json": f"{root}/f"}
    cell.outputs = [
        new_output("display_data", data),
        new_output("error", **error),
        new_output("display_data", script),
        new_output("display_data", {tool.WIDGET: {}, "text/plain": "Slider()", "text/html": "—"}),
        new_output("display_data", {tool.WIDGET: {}, "text/plain": "Slider()"}),
    ]
    nb = new_notebook(cells=[cell])
    nb.metadata.widgets = {"state": 1}
    tool.strip(nb, root)
    shown, raised, other, slider = nb.cells[0].outputs
    assert shown.data == {"text/html": "<p>./a</p>", "image/svg+xml": "./b", "text/plain": "."}
    assert (raised.evalue, raised.traceback) == ("no ./c", ["./d", "./e"])
    assert other.data == script  # a program's data stay as they are
    assert slider.data == {"text/plain": "Slider()", "text/html": "—"}
    assert nb.metadata.keys() == {"kernelspec", "language_info", "executed"}


def test_progress_on_a_terminal_and_in_a_file(tool, capsys, monkeypatch):
    def cells_done(waits=0.0):
        progress = tool.Progress("week", 3)
        progress.cell_done()
        progress.said -= waits
        progress.cell_done()
        progress.say(last=True)
        return capsys.readouterr().out

    first, second, last = (f"week  cell {k}/3  0 s" for k in range(3))
    assert cells_done() == f"{first}\n{last}\n"  # not one line for each cell
    assert cells_done(waits=11) == f"{first}\n{last}\n{last}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cells_done() == f"\r{first}\r{second}\r{last}\r{last}\n"


def test_a_digest_is_of_the_code_alone(tool):
    cells = [new_markdown_cell("# A"), new_code_cell("a"), new_code_cell(" "), new_code_cell("b")]
    found = tool.digest(new_notebook(cells=cells))
    assert found == tool.digest(new_notebook(cells=[cells[1], cells[3]]))
    assert found != tool.digest(new_notebook(cells=[cells[3], cells[1]]))
    assert found != tool.digest(new_notebook(cells=[new_code_cell("ab")]))
    assert len(found) == 16


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ["week01_b", "week02_a", "project"]),
        (("week01",), ["week01_b"]),
        (("project", "week01"), ["week01_b", "project"]),
    ],
)
def test_notebooks_in_order(tmp_path, words, found):
    folder = tmp_path / "notebooks"
    (folder / "project").mkdir(parents=True)
    for name in ("week02_a", "project/project", "week01_b", "mine"):
        (folder / f"{name}.ipynb").touch()
    assert [path.stem for path in ci("course").find(tmp_path, words)] == found


def test_what_a_cell_is_for():
    kinds, course = ("slide", "notes", "skip"), ci("course")
    cells = [{"metadata": {"slideshow": {"slide_type": kind}}} for kind in kinds]
    cells += [{"metadata": {}}, {"metadata": {"slideshow": {}}}]
    assert [course.slide_type(cell) for cell in cells] == [*kinds, "-", "-"]
    assert [course.is_note(cell) for cell in cells] == [False, True, False, False, False]
