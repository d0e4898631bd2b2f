"""Walk through a notebook and find what a student would see too early, and what is too long.

`faults` gives one line for each fault, with the number of the cell (text cells count too). The
question, its prediction and its answer:

    text        the question
    code        # what to write
                prediction_name = None
    code        the experiment; side_by_side(…, prediction=prediction_name, …): folded
    …           up to the first text cell below: what shows the answer is folded too
    code        prediction_sheet(), the last code cell but for those tagged `deeper`
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.notebooks.cells import ANSWER, Cell, called, read
from tests.notebooks.spelled import Number, agree, computed_in, constant, in_text

WORDS, COLUMNS = 150, 88
FIRST = "predict first, then open"
SOURCES = ("formula", "simulated", "published", "measured")
CHECKED = "nbval-check-output"  # a tag
NO_ANSWER = "no-answer"  # a tag: what this cell shows unfolded is not the answer
DIGITS = 3  # fewer agree by chance


def faults(nb) -> list[str]:
    """One line for each fault of a notebook."""
    cells = read(nb)
    checks = (lengths, own_cells, folded, told, in_asserts, beside, sheet)
    return [f"cell {number}: {said}" for check in checks for number, said in check(cells)]


def lengths(cells: list[Cell]):
    """Texts and lines that no slide has room for; rows of a table are not counted."""
    for cell in cells:
        words = len(re.sub(r"(?m)^\|.*$", "", cell.source).split())
        columns = max(map(len, cell.source.split("\n")))
        if cell.kind == "markdown" and words > WORDS:
            yield cell.number, f"a text of {words} words"
        if cell.kind == "code" and columns > COLUMNS:
            yield cell.number, f"a line of {columns} columns"


def predictions(call: ast.Call) -> list[str] | None:
    """The names in `prediction=`; None if something else is there."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "prediction"), None)
    nodes = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
    return [n.id for n in nodes] if all(isinstance(n, ast.Name) for n in nodes) else None


def own_cells(cells: list[Cell]):
    """A prediction is set to None once, in a cell of its own, above the experiment."""
    asked = {}
    compared = set()
    titles = Counter()
    for cell in cells:
        for call in cell.folds:
            names = predictions(call)
            if names is None:
                yield cell.number, "prediction= is neither a name nor a list of names"
            for name in names or []:
                if name not in asked:
                    yield cell.number, f"no cell of its own above sets {name} to None"
        for call in cell.calls("side_by_side"):
            compared |= set(predictions(call) or [])
            for what in call.args[:1]:
                titles += Counter(n.value for n in ast.walk(what) if is_text(n))
        for name in cell.asks:
            if name in asked:
                yield cell.number, f"{name} is already the name of another prediction"
            asked[name] = cell.number
    for cell in cells:
        for name in sorted(cell.sets):
            if name not in cell.asks and (name in asked or name.startswith("prediction")):
                yield cell.number, f"{name} belongs into a cell of its own, as {name} = None"
    for name, number in asked.items():
        if name.startswith("prediction") and name not in compared:
            yield number, f"{name} is never compared by side_by_side"
    for title, times in titles.items():
        if times > 1:
            yield 0, f"{times} questions have the name {title!r}: the sheet would mix them up"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def folded(cells: list[Cell]):
    """Committed answers are closed, and their plain text holds none."""
    for cell in cells:
        if not cell.folds:
            continue
        bodies = ANSWER.findall("".join(cell.html()))
        if len(bodies) < len(cell.folds):
            yield cell.number, f"{len(cell.folds)} answers, {len(bodies)} of them folded"
        if cell.shown.open_answers:
            yield cell.number, "an answer is folded, but open"
        for output in cell.outputs:
            data = output.get("data", {})
            if ANSWER.search(data.get("text/html", "")):
                for line in data["text/plain"].split("\n"):
                    if FIRST not in line:
                        yield cell.number, f"the plain text is not folded: {line[:60]}"
        tables = "".join(ANSWER.sub("", body) for body in cell.html())
        if "your prediction" in tables:
            yield cell.number, "a prediction was made: commit the notebook without"
        if CHECKED in cell.tags and any("base64," in body for body in bodies):
            yield cell.number, f"{CHECKED} compares the bytes of a picture: they vary"


def told(cells: list[Cell]):
    """No visible text and no code above the answer gives its number; nor what is right below."""

    @cache
    def seen(number: int) -> list[Number]:
        shown, tree = cells[number].shown, cells[number].tree
        return [*in_text(shown.source), *in_text(shown.output), *computed_in(tree)]

    last = 0
    for cell in cells:
        if not cell.answers():
            continue
        below = neighbours(cells, cell)
        for source, text in dict.fromkeys(cell.answers()):
            [answer] = list(in_text(text.replace("+", "")))[:1] or [None]
            if answer is None or (answer.digits < DIGITS and abs(answer.value) < 1e4):
                continue
            if answer.value in choices(cell.tree):
                continue
            for other in cells[: cell.number + 1]:
                # A time or a loss differs from run to run: three digits agree by chance.
                chance = source == "measured" and other.number <= last
                if most(answer, seen(other.number)) >= DIGITS + chance:
                    yield other.number, f"tells {text}, an answer of cell {cell.number}"
            for other in below:
                shown = other.shown.output + (other.shown.source if other.kind != "code" else "")
                if most(answer, in_text(shown)) >= DIGITS:
                    yield other.number, f"tells {text} right below its question, unfolded"
        last = cell.number


def choices(tree: ast.AST) -> set[float | None]:
    """The numbers of which the cell tries each: the question lists them, too."""
    loops = (node.iter for node in ast.walk(tree) if isinstance(node, ast.For))
    return {constant(n) for tried in loops for n in getattr(tried, "elts", [])}


def most(answer: Number, others) -> int:
    return max((agree(answer, other) for other in others), default=0)


def neighbours(cells: list[Cell], cell: Cell) -> list[Cell]:
    """The cells below an answer, up to the first text or the next prediction."""
    found = []
    for other in cells[cell.number + 1 :]:
        if other.asks:
            break
        found.append(other)
        if other.kind == "markdown":
            break
    return found


def in_asserts(cells: list[Cell]):
    """The experiment's own cell gives the answer away neither in an assert nor as a literal."""
    for cell in cells:
        for call in cell.calls("side_by_side"):
            for keyword in call.keywords:
                nodes = getattr(keyword.value, "elts", [keyword.value])
                if keyword.arg in SOURCES and any(constant(n) is not None for n in nodes):
                    yield cell.number, f"{keyword.arg}= is a literal; compute it, or leave it out"
        answers = {text for _, text in cell.answers()}
        for node in ast.walk(cell.tree):
            if isinstance(node, ast.Assert):
                for claim in claimed(node.test):
                    if any(gives(claim, text) for text in answers):
                        yield cell.number, f"an assert tells {claim!r}: move it below the answer"


def claimed(node: ast.AST) -> Iterator[float | str]:
    """The constants in an assert; those of an index or of a call are no claims."""
    value = constant(node)
    if value is not None:
        yield value
    elif is_text(node):
        yield node.value
    elif isinstance(node, ast.Subscript):
        yield from claimed(node.value)
    elif isinstance(node, ast.Call):
        if called(node) in ("abs", "isclose", "round"):
            yield from (claim for argument in node.args for claim in claimed(argument))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and is_ratio(node.left):
        yield from claimed(node.left)  # x / y - 1
    else:
        for child in ast.iter_child_nodes(node):
            yield from claimed(child)


def is_ratio(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def gives(claim: float | str, text: str) -> bool:
    """Whether a constant tells the answer: equal to it, or a bound within 10 % of it."""
    if isinstance(claim, str):
        return claim.strip().casefold() == text.strip().casefold()
    for answer in list(in_text(text.replace("+", "")))[:1]:
        if abs(answer.value) >= 10 and abs(claim / answer.value - 1) <= 0.1:
            return True
        return float(f"{claim:.4g}") == answer.value
    return False


def beside(cells: list[Cell]):
    """Between a prediction and the first text below its answer, what shows the answer is folded."""
    since = None
    for cell in cells:
        since = cell.number if cell.asks else since
        if not cell.folds or since is None:
            continue
        for other in [*cells[since : cell.number + 1], *neighbours(cells, cell)]:
            if NO_ANSWER in other.tags or list(other.calls("prediction_sheet")):
                continue
            if other.shown.displays:
                yield (
                    other.number,
                    f"a picture or table beside the closed answer of cell {cell.number}",
                )
        printed = "".join(output.get("text", "") for output in cell.outputs)
        if re.search(r"\d", printed) and NO_ANSWER not in cell.tags:
            yield cell.number, "a printed number beside the closed answer"


def sheet(cells: list[Cell]):
    """The main path of a notebook with predictions ends with the sheet, and it is empty."""
    if not any(cell.folds or cell.asks for cell in cells):
        return
    code = [cell for cell in cells if cell.kind == "code" and cell.source.strip()]
    last = [cell for cell in code if "deeper" not in cell.tags][-1]
    if not list(last.calls("prediction_sheet")):
        yield last.number, "the last code cell is to be prediction_sheet()"
    elif not re.search(r"^0 of \d+ predicted", "".join(last.plain()), re.M):
        yield last.number, "the sheet is to be committed without predictions"
