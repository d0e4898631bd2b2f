"""Each file of the package that computes something has a test file that mirrors it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def computes(tree: ast.Module) -> bool:
    """Whether some function does more than to promise: it is no stub of a protocol."""

    def is_stub(function) -> bool:
        return all(
            isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
            for line in function.body
        )

    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return any(not is_stub(function) for function in functions)


def without_mirror(root: Path) -> list[str]:
    """helpers/a/b.py wants tests/a/test_b.py, or files test_b_….py that divide it."""
    found = []
    for path in sorted((root / "helpers").rglob("*.py")):
        folder = root / "tests" / path.parent.relative_to(root / "helpers")
        own = [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]
        if path.stem != "__init__" and not own and computes(ast.parse(path.read_text("utf-8"))):
            found.append(str(path.relative_to(root)))
    return found


def test_each_file_has_its_own_tests():
    assert without_mirror(ROOT) == []


def test_a_file_without_tests_is_found_and_a_protocol_needs_none(tmp_path):
    for name, text in (
        ("helpers/a/__init__.py", "def f():\n    return 1"),
        ("helpers/a/plain.py", "WIDTH = 3"),
        ("helpers/a/protocol.py", 'class P:\n    def f(self):\n        """Do."""\n        ...'),
        ("helpers/a/whole.py", "def f():\n    return 1"),
        ("helpers/a/cut.py", "def f():\n    pass"),
        ("helpers/a/bare.py", "class C:\n    def f(self):\n        return 1"),
        ("tests/a/test_whole.py", ""),
        ("tests/a/test_cut_small.py", ""),
        ("tests/test_bare.py", ""),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert without_mirror(tmp_path) == ["helpers/a/bare.py"]
