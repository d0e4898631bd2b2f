"""Numbers as texts and programs spell them: 6,000,000 and 6_000_000, 6e6 and 6·10⁶, 6 MB."""

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager

GROUP = r"(?:,|_|\{,\}|\\,|\u202f|\u2009|\u00a0)"  # between thousands
SPELLED = re.compile(
    rf"""(?<![\w.^])
    (?P<mantissa>(?:\d{{1,3}}(?:{GROUP}\d{{3}})+(?!\d)|\d+(?:_\d+)*)(?:\.\d+)?|\.\d+)
    (?:[eE](?P<e>[+-]?\d+)
      |\s*(?:×|·|\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[+−-]?\d+)\}}?
      |\s*(?:×|·|\\times|\\cdot)\s*10(?P<raised>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)
    )?
    (?:\s*(?P<scale>thousand|million|billion|trillion|(?:[kKMGTP]i?)(?=B\b|FLOP|\b)|\\?%))?""",
    re.VERBOSE,
)
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻−", "0123456789+--")
SCALE = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "%": 0.01, "\\%": 0.01}
for power, letter in enumerate("KMGTP", start=1):
    SCALE |= {letter: 1000.0**power, f"{letter}i": 1024.0**power}
SCALE["k"] = 1e3
LARGE = 10_000  # a number that is recognised even when it has few digits besides zeros


@dataclass(frozen=True)
class Number:
    value: float
    digits: int  # significant ones; zeros at the end do not count


def digits_of(mantissa: str) -> int:
    return len(re.sub(r"\D", "", mantissa).strip("0"))


def in_text(text: str) -> Iterator[Number]:
    """Every number of a text; one with a scale (6 MB, 38 %) twice, with and without it."""
    for hit in SPELLED.finditer(text):
        mantissa = re.sub(GROUP, "", hit["mantissa"])
        power = (hit["e"] or hit["power"] or hit["raised"] or "0").translate(RAISED)
        if abs(int(power)) > 200:
            continue
        value, digits = float(mantissa) * 10.0 ** int(power), digits_of(mantissa)
        yield Number(value, digits)
        if hit["scale"]:
            yield Number(value * SCALE[hit["scale"]], digits)


def parse(source: str) -> ast.Module:
    """The syntax tree of a cell; IPython's magics (`!`, `%`) become calls."""
    return ast.parse(TransformerManager().transform_cell(source))


def constant(node: ast.AST) -> float | None:
    """The value of an expression without names: `6`, `1 / 12`, `-2 * 10**6`; else None."""
    try:
        return float(evaluated(node))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None


def evaluated(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = evaluated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluated(node.left), evaluated(node.right))
    raise TypeError


def power_of(base: float, exponent: float) -> float:
    return float(base) ** exponent  # floats overflow, where integers grow without end


OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: power_of,
}


def computed_in(tree: ast.AST) -> Iterator[Number]:
    """The value of every expression of constants, `1024 / 3` or `4 * 1153 * 8`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and (value := constant(node)) is not None:
            yield Number(value, digits_of(f"{value:.15g}".split("e")[0]))


def rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def agree(answer: Number, other: Number) -> int:
    """The number of significant digits in which both agree; 0 if they differ.

    A number above `LARGE` that is equal counts as ten digits: 6 MB is 6,000,000 bytes.
    """
    if abs(answer.value) >= LARGE and math.isclose(answer.value, other.value, rel_tol=1e-9):
        return 10
    digits = min(answer.digits, other.digits)
    if digits == 0 or rounded(answer.value, digits) != rounded(other.value, digits):
        return 0
    return digits
