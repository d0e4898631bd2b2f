"""Check what a change needs, in less than two minutes: lint, and the tests of the changed files.

    quick.py [COMMIT]

Changed files differ from COMMIT (by default the last commit), or are new to git. A file of helpers/
is tested by the file of tests/ that has its name, and by the tests of its package that import it or
name something that it defines; if there are none, by all tests that import it; else by all of its
package. `make test` runs more.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# These tests are cheap, and a change anywhere can break them.
ALWAYS = ("tests/test_floors.py", "tests/test_environment.py")
# Files that are neither code of helpers/ nor a test, by the start of their path.
OTHERS = {
    "notebooks/solutions/": ["tests/notebooks/test_exercises.py"],
    "notebooks/project/elsewhere/": ["tests/notebooks/project/test_elsewhere.py"],
    "notebooks/project/": [
        "tests/notebooks/project/test_distributed.py",
        "tests/check/submission/test_project_scripts.py",
    ],
    "README.md": ["tests/test_readme.py", "tests/notebooks/test_site.py"],
    "notebooks/guide/": ["tests/notebooks/test_guide.py", "tests/test_readme.py"],
    "notebooks/rise.css": ["tests/notebooks/test_slides.py"],
    "notebooks/": ["tests/notebooks/test_scripts.py"],
    ".ci/loading.py": ["tests/notebooks/test_slides.py"],
    ".ci/slides": ["tests/notebooks/test_slides.py", "tests/browser/test_slides.py"],
    ".ci/notebooks.py": ["tests/notebooks/test_tool.py"],
    ".ci/course.py": [
        "tests/notebooks/test_tool.py",
        "tests/notebooks/test_student.py",
        "tests/notebooks/test_slides.py",
    ],
    ".ci/licences": ["tests/test_licences.py"],
    ".ci/lock": ["tests/test_lock.py"],
    ".ci/install": ["tests/test_lock.py"],
    "environment.yml": ["tests/test_lock.py", "tests/test_licences.py"],
    ".ci/student.py": ["tests/notebooks/test_student.py"],
    ".ci/start.py": ["tests/notebooks/test_start.py"],
    ".ci/handout.py": ["tests/notebooks/test_handout.py"],
    ".ci/lab.py": ["tests/notebooks/test_lab.py"],
    ".ci/mutants.py": ["tests/test_mutants.py"],
    ".ci/site": ["tests/notebooks/test_site.py", "tests/browser/test_site.py"],
    ".ci/front.py": ["tests/notebooks/test_site.py", "tests/browser/test_site.py"],
    ".ci/reference.py": ["tests/notebooks/test_site.py", "tests/browser/test_site.py"],
    ".ci/replays.py": ["tests/notebooks/test_site.py", "tests/browser/test_site.py"],
    ".ci/": ["tests/test_suite.py"],
    "Makefile": ["tests/test_suite.py"],
}
FOR_ALL = re.compile(r"tests/(conftest|share)\.py|pyproject\.toml")


def changed(since: str, root: Path = ROOT) -> list[str]:
    """Return the paths that differ from a commit, and the paths that are new to git."""
    listings = (
        ["git", "diff", "--name-only", "--relative", "-z", since, "--"],
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
    )
    done = [subprocess.run(line, cwd=root, text=True, stdout=subprocess.PIPE) for line in listings]
    if any(listing.returncode for listing in done):
        sys.exit(f"git does not know what has changed since {since!r}")
    return sorted({path for listing in done for path in listing.stdout.split("\0") if path})


def find_tests(path: str, root: Path = ROOT) -> list[str]:
    """Return the test files, folders of tests and notebooks to run after a change of this file."""
    file = Path(path)
    if file.suffix == ".ipynb":
        return [path, "tests/notebooks/test_format.py"] if (root / path).exists() else []
    if FOR_ALL.fullmatch(path):
        return []
    for start, tests in OTHERS.items():
        if path.startswith(start):
            return tests
    if file.parts[0] == "helpers":
        own = ["tests/test_import.py"] if file.name == "__init__.py" else []
        return [*own, *near(file, root)] or importing(file, root) or package(file, root)
    if file.parts[0] == "tests":
        return of_test(file, root)
    return []


def of_test(file: Path, root: Path) -> list[str]:
    """Return a test itself; for a file that tests share, its users, or all of its folder."""
    if file.name == "conftest.py":
        return using(file, root) or package(file, root)
    if file.name.startswith("test_"):
        return names([root / file] if (root / file).exists() else [], root)
    return importing(file, root) or package(file, root)


def near(file: Path, root: Path) -> list[str]:
    """Return the tests of the package with the file's name, that import it, or that name a part."""
    module = file.parent.with_suffix(".py") if file.name == "__init__.py" else file
    if len(module.parts) < 3:
        return []
    below = f"tests/{module.parts[1]}/"
    imports = [test for test in importing(module, root) if test.startswith(below)]
    return sorted({*mirrored(module, root), *naming(file, root), *imports})


def mirrored(file: Path, root: Path) -> list[str]:
    """Return tests/a/test_b*.py for helpers/a/b.py."""
    folder = root / "tests" / file.relative_to("helpers").parent
    return names(
        [*folder.glob(f"test_{file.stem}.py"), *folder.glob(f"test_{file.stem}_*.py")], root
    )


def naming(file: Path, root: Path) -> list[str]:
    """Return the tests in the mirrored folder with a public function's or class's name in them."""
    if file.suffix != ".py" or not (root / file).exists():
        return []
    defined = re.findall(r"^(?:def|class) ([A-Za-z]\w*)", (root / file).read_text("utf-8"), re.M)
    named = re.compile(rf"\b(?:{'|'.join(defined or ['$'])})\b")
    folder = root / "tests" / file.relative_to("helpers").parent
    tests = texts(root / "tests").items()
    return names([t for t, text in tests if t.parent == folder and named.search(text)], root)


def importing(file: Path, root: Path) -> list[str]:
    """Return the tests that import the module by name."""
    *parents, name = file.with_suffix("").parts
    whole = ".".join(parents)
    parent = re.escape(whole)
    pattern = (
        rf"^\s*(?:from|import) {parent}"
        rf"(?:\.{name}\b| import (?:[^\n(]*|\([^)]*)(?<![\w.]){name}\b)"
    )
    imports = re.compile(pattern, re.MULTILINE)
    tests = texts(root / "tests").items()
    return names([t for t, text in tests if whole in text and imports.search(text)], root)


@cache
def texts(folder: Path) -> dict[Path, str]:
    """Return the tests below a folder: {file: its text}."""
    return {test: test.read_text("utf-8") for test in folder.rglob("test_*.py")}


def using(file: Path, root: Path) -> list[str]:
    """Return the tests that use a fixture of this conftest.py."""
    if not (root / file).exists():
        return []
    text = (root / file).read_text("utf-8")
    fixtures = re.findall(r"^@pytest\.fixture.*\ndef _?(\w+)", text, re.MULTILINE)
    takes = re.compile(rf"^def test_\w+\([^)]*\b({'|'.join(fixtures or ['$'])})\b", re.MULTILINE)
    tests = texts(root / file.parent).items()
    return names([test for test, text in tests if takes.search(text)], root)


def package(file: Path, root: Path) -> list[str]:
    """Return the tests in the mirrored folder, or in the next folder above that has tests."""
    folder = root.joinpath("tests", *file.parts[1:-1])
    while folder != root / "tests":
        if found := names(folder.glob("test_*.py"), root):
            return found
        folder = folder.parent
    return []


def names(paths, root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in paths)


def main(since: str = "HEAD") -> int:
    paths = changed(since)
    for path in filter(FOR_ALL.fullmatch, paths):
        print(f"{path} matters to every test: before you commit, `make test`")
    chosen = dict.fromkeys(test for path in paths for test in [*find_tests(path), *ALWAYS])
    print(f"{len(paths)} changed files:", *(chosen or ["nothing to test"]), sep="\n  ", flush=True)
    steps = [["-m", "ruff", "check"], ["-m", "ruff", "format", "--check"]]
    if chosen:
        steps.append([".ci/suite.py", *chosen])
    codes = [subprocess.call([sys.executable, *step], cwd=ROOT) for step in steps]
    return int(any(codes))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
