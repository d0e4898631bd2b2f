"""Plant small mistakes in the code, one at a time, and list those that no test finds.

    mutants.py [--most N] [--seed S] [PATH … | COMMIT]

Args:
    PATH: files of helpers/. Without one, the files that differ from COMMIT, by default from HEAD.
    --most: how many mistakes in each file, chosen at random; 0 for all. Default: 30.

Cosmic Ray, a maintained tool, makes the mistakes: `<` for `<=`, `+` for `-`, 2 for 1, no `not`, a
loop that never runs. This program adds one: a statement is left out. A mistake in helpers/P/… is
judged by all tests of the package, tests/P, in a copy of the project: first those that `make quick`
runs for the file, then the others. A mistake survives if all pass.

.ci/equivalent.toml lists the mistakes that change nothing, each with its reason. They are skipped.

Ranks read the copy, so mistakes reach them, too. Notebooks are not mutated, and they do not run
here: this judges the tests alone. Docstrings, annotations and messages are left alone.

The program exits with an error if a mistake survived.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import quick

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
EQUIVALENT = ROOT / ".ci" / "equivalent.toml"
# Cosmic Ray replaces each operator by every other. These are the mistakes that people make.
OPERATORS = {
    "ReplaceBinaryOperator": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div FloorDiv_Mul "
    "Mod_FloorDiv Pow_Mul BitAnd_BitOr BitOr_BitAnd LShift_RShift RShift_LShift",
    "ReplaceComparisonOperator": "Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt LtE_GtE Gt_GtE Gt_Lt "
    "GtE_Gt GtE_LtE Is_IsNot IsNot_Is",
    "ReplaceUnaryOperator": "Delete_USub Delete_Not Delete_Invert",
}
OTHERS = (
    "AddNot ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd "
    "ReplaceBreakWithContinue ReplaceContinueWithBreak NumberReplacer ZeroIterationForLoop"
)
KINDS = [f"core/{family}_{kind}" for family, kinds in OPERATORS.items() for kind in kinds.split()]
KINDS += [f"core/{kind}" for kind in OTHERS.split()]
ANNOTATION = re.compile(r"->|^\s*\w+: |^\s*(async )?def ")  # `|` means "or" there
PATIENCE = 3  # times as long as without a mistake; then it counts as found: something hangs
START = 30.0  # seconds more


@dataclass(frozen=True)
class Mutant:
    """A file with one mistake.

    Attributes:
        path: relative to the project.
        line: the number of the line, from 1.
        before, after: the line without and with the mistake, stripped.
        source: the whole file with the mistake.
    """

    path: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n    - {self.before}\n    + {self.after}"


def mutants(path: str, source: str) -> list[Mutant]:
    """Make every mistake of these kinds, and leave out each simple statement in turn."""
    from cosmic_ray.ast import ast_nodes, get_ast  # only `make mutants` has it
    from cosmic_ray.mutating import MutationVisitor
    from cosmic_ray.plugins import get_operator

    tree, found = get_ast(source), {}
    for kind in KINDS:
        operator = get_operator(kind)()
        places = sum(len(list(operator.mutation_positions(node))) for node in ast_nodes(tree))
        for occurrence in range(places):
            mutant = compared(
                path, source, MutationVisitor.mutate_code(source, operator, occurrence)
            )
            if mutant is not None:
                found.setdefault(mutant.source, mutant)
    for mutated in without_a_statement(source):
        mutant = compared(path, source, mutated)
        found.setdefault(mutated, mutant)
    return list(found.values())


def without_a_statement(source: str) -> list[str]:
    """Replace each call whose result is dropped, and each `x += …`, by `pass`."""
    lines, found = source.split("\n"), []
    for node in ast.walk(ast.parse(source)):
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if (call or isinstance(node, ast.AugAssign)) and node.lineno == node.end_lineno:
            line, inside = lines[node.lineno - 1], slice(node.col_offset, node.end_col_offset)
            changed = line[: inside.start] + "pass" + line[inside.stop :]
            found.append("\n".join([*lines[: node.lineno - 1], changed, *lines[node.lineno :]]))
    return found


def compared(path: str, source: str, mutated: str | None) -> Mutant | None:
    """Find the line that differs. None if the mutant is no Python, or differs in an annotation."""
    old, new = source.split("\n"), (mutated or source).split("\n")
    lines = [k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    if len(old) != len(new) or len(lines) != 1 or not compiles(mutated):
        return None
    before, after = old[lines[0]].strip(), new[lines[0]].strip()
    if "|" in before and ANNOTATION.search(old[lines[0]]):
        return None
    return Mutant(path, lines[0] + 1, before, after, mutated)


def compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `x is 1`
            compile(source, "<mutant>", "exec")
    except SyntaxError:
        return False
    return True


def equivalent(file: Path = EQUIVALENT) -> set[tuple[str, str, str]]:
    """The mistakes that change nothing: path, line before, line after."""
    listed = tomllib.loads(file.read_text("utf-8")).get("mutant", []) if file.exists() else []
    return {(one["path"], one["before"], one["after"]) for one in listed}


def chosen(path: str, most: int, seed: int, known: set) -> list[Mutant]:
    """Choose mistakes of a file at random, in the order of its lines."""
    every = mutants(path, (ROOT / path).read_text("utf-8"))
    every = [m for m in every if (m.path, m.before, m.after) not in known]
    every.sort(key=lambda m: (m.line, m.after))
    if most and len(every) > most:
        every = random.Random(seed).sample(every, most)
    return sorted(every, key=lambda m: m.line)


def copy_of(root: Path, to: Path):
    """Copy the project's files, the new ones too, without what git ignores."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def run(tests: list[str], tree: Path, timeout: float | None = None) -> tuple[bool, float]:
    """Run tests in a copy. Returns whether all passed, and the seconds."""
    command = [PYTHON, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # a stale .pyc of the same second and size would hide a mistake
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        passed = process.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        passed = False
    finally:
        end(process)
    return passed, time.monotonic() - began


def end(process: subprocess.Popen):
    """End the tests, and all processes that they started in their session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def judges(path: str) -> list[list[str]]:
    """The tests of the file's package: those nearest to the file, then all others."""
    near = quick.find_tests(path, ROOT)
    below = (ROOT / "tests" / Path(path).parts[1]).rglob("test_*.py")
    others = set(quick.names(below, ROOT)) - set(near)
    return [tests for tests in (near, sorted(others)) if tests]


def judge(path: str, most: int, seed: int, known: set, tree: Path) -> list[Mutant]:
    """Plant mistakes in one file, and return those that survive."""
    stages = judges(path)
    if not stages:
        print(f"{path}: its package has no tests")
        return []
    limits = []
    for tests in stages:
        passed, seconds = run(tests, tree)
        if not passed:
            sys.exit(f"{path}: a test fails without any mistake: {' '.join(tests)}")
        limits.append(PATIENCE * seconds + START)
    planted = chosen(path, most, seed, known)
    print(f"{path}: {len(planted)} mistakes, first tried by {' '.join(stages[0])}", flush=True)
    survived = []
    for mutant in planted:
        (tree / path).write_text(mutant.source, "utf-8")
        runs = zip(stages, limits, strict=True)
        if all(run(tests, tree, limit)[0] for tests, limit in runs):
            survived.append(mutant)
            print(mutant, flush=True)
    shutil.copy2(ROOT / path, tree / path)
    print(f"{path}: {len(planted) - len(survived)} of {len(planted)} found", flush=True)
    return survived


def files(given: list[str]) -> list[str]:
    """The files to mutate: those named, or those that differ from a commit."""
    if all(name.endswith(".py") for name in given) and given:
        return given
    if len(given) > 1:
        sys.exit("name files of helpers/, or one commit")
    paths = quick.changed(*(given or ["HEAD"]), ROOT)
    return [
        p for p in paths if p.startswith("helpers/") and p.endswith(".py") and (ROOT / p).exists()
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("given", nargs="*")
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    paths = [path for path in files(options.given) if not path.endswith("__init__.py")]
    if not paths:
        print("no file of helpers/ has changed; name one")
    known, survived = equivalent(), []
    with tempfile.TemporaryDirectory() as folder:
        copy_of(ROOT, Path(folder))
        for path in paths:
            survived += judge(path, options.most, options.seed, known, Path(folder))
    print(f"\n{len(survived)} survived", *survived, sep="\n")
    return int(bool(survived))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
