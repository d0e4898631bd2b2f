"""A package of helpers/ imports only from lower floors, and never from `helpers` itself.

Inside a package, too, no modules import each other in a circle. `helpers/__init__.py` is the
**face**: the names for notebooks. Every import counts, also inside functions and for types alone,
in any spelling: absolute, relative, or `importlib.import_module("helpers.…")` with a literal name.
"""

import ast
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HELPERS = ROOT / "helpers"
README = ROOT / "README.md"

FLOOR = {
    "scaling": 6,
    "check": 6,
    "training": 5,
    "resilience": 5,
    "planner": 5,
    "parallel": 4,
    "simulate": 4,
    "inference": 5,
    "state": 3,
    "comm": 2,
    "models": 2,
    "data": 2,
    "precision": 2,
    "plans": 2,
    "runtime": 1,
    "measure": 1,
    "plots": 0,
}


def imports(path, house):
    """Yield (line, dotted name) of each import in the file; `from a import b` gives a.b."""
    package = ["helpers", *path.relative_to(house).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")]
            for alias in node.names:
                yield node.lineno, ".".join([*filter(None, base), alias.name])
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            name = getattr(node.args[0], "value", None)
            if called in ("import_module", "__import__") and isinstance(name, str):
                if name.startswith("."):
                    up = len(name) - len(name.lstrip("."))
                    name = ".".join([*package[: len(package) - up + 1], name.lstrip(".")])
                yield node.lineno, name


def violations(house, floor):
    """List what breaks the rules below the folder `house`, as 'file:line: reason'."""
    found = []
    packages = {p.name for p in house.iterdir() if p.is_dir() and any(p.rglob("*.py"))}
    found += [f"{name}/: has no floor, add it to FLOOR" for name in sorted(packages - set(floor))]
    for path in sorted(house.rglob("*.py")):
        own = path.relative_to(house).parts[0]
        for line, name in imports(path, house):
            where = f"{path.relative_to(house)}:{line}:"
            first, *rest = name.split(".")
            if first != "helpers" or own == "__init__.py":  # the face may name any package
                continue
            target = rest[0] if rest else None
            if target not in floor and target not in packages:
                found.append(f"{where} imports the face, {name}")
            elif own in floor and target in floor and target != own and floor[target] >= floor[own]:
                relation = (
                    "on the same floor" if floor[target] == floor[own] else "on a higher floor"
                )
                found.append(f"{where} imports {target}, {relation}")
    return found


def circles(house):
    """List the modules below `house` that import each other in a circle, circle by circle.

    A package's `__init__.py` is a module of its own: who imports helpers.a.b does not import a.
    """
    files = {path.relative_to(house).with_suffix(""): path for path in house.rglob("*.py")}
    files = {path.parent if path.name == "__init__" else path: f for path, f in files.items()}
    modules = {".".join(("helpers", *path.parts)): file for path, file in files.items()}
    edges = {module: set() for module in modules}
    for module, file in modules.items():
        for _, name in imports(file, house):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            edges[module] |= {name} - {"", module}

    def reached(module):
        found, todo = set(), [module]
        while todo:
            new = edges[todo.pop()] - found
            found |= new
            todo += new
        return found

    reach = {module: reached(module) for module in modules}
    found = {frozenset(m for m in reach[a] if a in reach[m]) for a in modules if a in reach[a]}
    return sorted(sorted(circle) for circle in found)


def test_the_house_stands():
    assert violations(HELPERS, FLOOR) == []


def test_no_modules_import_each_other_in_a_circle():
    assert circles(HELPERS) == []


def test_the_readme_has_every_package_on_its_floor():
    rows = re.findall(r"^\| (\d) \| (.*) \|$", README.read_text("utf-8"), re.MULTILINE)
    told = {name: int(floor) for floor, row in rows for name in re.findall(r"`(\w+)`: ", row)}
    assert told == FLOOR
    assert set(FLOOR) == {path.parent.name for path in HELPERS.glob("*/__init__.py")}


def house(tmp_path, **files):
    """A small tree of one-file packages: low (1), left and right (2), high (3)."""
    tmp_path.joinpath("__init__.py").write_text("from helpers.high import top\n")
    for name in ("low", "left", "right", "high"):
        tmp_path.joinpath(name).mkdir()
        tmp_path.joinpath(name, "__init__.py").write_text("")
    for name, source in files.items():
        tmp_path.joinpath(name, "code.py").write_text(textwrap.dedent(source))
    return tmp_path, {"low": 1, "left": 2, "right": 2, "high": 3}


def test_downward_and_own_imports_are_fine(tmp_path):
    tree, floor = house(
        tmp_path,
        high="import torch\nimport helpers.left.code\nfrom ..right import x",
        left="from helpers.left import other\nfrom . import third\nfrom helpers import low",
    )
    assert violations(tree, floor) == []


@pytest.mark.parametrize(
    "source",
    [
        "import helpers.high",
        "import helpers.high.code as code",
        "from helpers.high import code",
        "from helpers import high",
        "from helpers import low, high",
        "from ..high import code",
        "from .. import high",
        "def f():\n    from helpers.high.code import name",
        "class A:\n    def f(self):\n        import helpers.high",
        "import importlib\nimportlib.import_module('helpers.high.code')",
        "from importlib import import_module\nf = lambda: import_module('helpers.high')",
        "import importlib\nimportlib.import_module('..high', __package__)",
        "if TYPE_CHECKING:\n    from helpers.high import code",
    ],
)
def test_an_import_upward_is_found(tmp_path, source):
    [found] = violations(*house(tmp_path, left=source))
    assert found.startswith("left/code.py:")
    assert "imports high, on a higher floor" in found


@pytest.mark.parametrize(
    ("place", "source", "found"),
    [
        ("left/code.py", "import helpers.right", "imports right, on the same floor"),
        ("left/code.py", "from ..right import x", "imports right, on the same floor"),
        ("low/deep/code.py", "from ...high import x", "imports high, on a higher floor"),
        ("high/code.py", "import helpers", "imports the face, helpers"),
        ("high/code.py", "import helpers as h", "imports the face, helpers"),
        ("high/code.py", "from helpers import launch", "imports the face, helpers.launch"),
        ("high/code.py", "from .. import launch", "imports the face, helpers.launch"),
    ],
)
def test_an_import_across_a_floor_or_of_the_face_is_found(tmp_path, place, source, found):
    tree, floor = house(tmp_path)
    tree.joinpath(place).parent.mkdir(exist_ok=True)
    tree.joinpath(place).write_text(source)
    assert violations(tree, floor) == [f"{place}:1: {found}"]


def test_a_package_on_no_floor_is_found(tmp_path):
    tree, floor = house(tmp_path)
    tree.joinpath("attic").mkdir()
    tree.joinpath("attic", "code.py").write_text("import helpers.high\n")
    assert violations(tree, floor) == ["attic/: has no floor, add it to FLOOR"]


@pytest.mark.parametrize(
    ("one", "two", "circle"),
    [
        ("from .two import x", "from . import one", ["a.one", "a.two"]),
        ("from .two import x", "def f():\n    from .one import y", ["a.one", "a.two"]),
        ("import helpers.a.two", "if TYPE_CHECKING:\n    import helpers.a.one", ["a.one", "a.two"]),
        ("from . import x", "", ["a", "a.one"]),
        ("from .two import x", "from torch import one", []),
        ("from ..high import x", "from helpers.a import one", []),
    ],
)
def test_a_circle_inside_a_package_is_found(tmp_path, one, two, circle):
    tree, _ = house(tmp_path)
    (tree / "a").mkdir()
    for name, text in (("__init__", "from .one import x"), ("one", one), ("two", two)):
        (tree / "a" / f"{name}.py").write_text(text)
    assert circles(tree) == [[f"helpers.{name}" for name in circle]] * bool(circle)


def test_no_folder_of_tests_has_the_name_of_a_module_beside_it():
    """Pytest imports the folder as a package, and then nothing can import the module."""
    modules = Path(__file__).parent.rglob("*.py")
    assert [path.name for path in modules if path.with_suffix("").is_dir()] == []
