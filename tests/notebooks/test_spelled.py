"""Numbers as texts and programs spell them."""

import ast

import pytest

from tests.notebooks.spelled import Number, agree, computed_in, constant, in_text, parse


@pytest.mark.parametrize(
    "text",
    [
        "6,000,000", "6_000_000", "6000000", "6e6", "6.0E+6", "6 MB", "6 million", "6·10⁶",
        "$6 \\cdot 10^6$", "$6 \\times 10^{6}$", "6 * 10**6", "6{,}000{,}000", "6\\,000\\,000",
        "(6000000)", "S=6000000.", "6 MFLOP", "6000 kB",
    ],
)  # fmt: skip
def test_spellings_of_six_million(text):
    assert 6e6 in [number.value for number in in_text(text)]


@pytest.mark.parametrize("text", ["x6000000", "v6000000", "1.6000000", "6.000.000", "6000000_000"])
def test_other_numbers_are_not_six_million(text):
    assert 6e6 not in [number.value for number in in_text(text)]


def test_scales():
    values = [number.value for number in in_text("64 KiB, 38 %, 2 Mi, 5 bytes")]
    assert values == [64, 65536, 38, 0.38, 2, 2 * 2**20, 5]


def test_digits_without_zeros_at_the_end():
    assert [n.digits for n in in_text("100 1.50 0.083 6,000,864 0")] == [1, 2, 2, 7, 0]


def test_agree():
    assert agree(Number(341.3, 4), Number(1024 / 3, 15)) == 4
    assert agree(Number(341.3, 4), Number(341, 3)) == 3
    assert agree(Number(341.3, 4), Number(342, 3)) == 0
    assert agree(Number(6e6, 1), Number(6e6, 1)) == 10
    assert agree(Number(600, 1), Number(600, 1)) == 1
    assert agree(Number(0, 0), Number(0, 0)) == 0


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("6", 6), ("-2 * 10**6", -2e6), ("1 / 12", 1 / 12), ("7 // 2 + 7 % 4", 6), ("x", None),
        ("2 * x", None), ("True", None), ("'6'", None), ("1 / 0", None), ("9**9**9", None),
        ("f(3)", None), ("1 @ 2", None), ("{1} & {2}", None), ("1 << 2", None),
    ],
)  # fmt: skip
def test_constant(source, value):
    assert constant(ast.parse(source, mode="eval").body) == value


def test_computed():
    found = [number.value for number in computed_in(parse("x = 4 * 1153 * 8 + y\n!ls 5"))]
    assert found == [4 * 1153 * 8, 4 * 1153]
