"""The update rule in a kernel: the solution passes; each common mistake gets its own hint."""

import copy
import re

import pytest
import torch

pytest.importorskip("triton", reason="Triton is there on Linux only")
import triton.language as tl

from helpers import check
from helpers.check import elsewhere
from helpers.check.in_kernel import BLOCK, KINDS
from helpers.check.oracle import NotRight
from helpers.check.week08.fused_update import TYPES, judge, right
from notebooks.solutions import week08
from tests.check.alone import found_alone
from tests.check.asked import asked, drawn_anew
from tests.check.told import told


def rule(
    *,
    unscale=("m", "v"),
    decay="decoupled",
    betas=1,
    square=True,
    half=False,
    corrected=("m", "v"),
    by=1,
    eps="after",
    root=True,
    sign=1,
    overflow="all",
    low="new",
    kept=True,
    answer=lambda *blocks: blocks,
):
    """The solution, with one part of it changed."""

    def solve(p, g, m, v, over, scale, lr, beta1, beta2, c1, c2, eps_, weight_decay):
        old = p, m, v
        g = g.to(tl.float32)
        if unscale == "twice":
            g = g / (scale * scale)
        elif unscale == ("m", "v"):
            g = g / scale
        if decay == "coupled":
            g = g + weight_decay * p
        for_m = g / scale if unscale == ("m",) else g
        for_v = g / scale if unscale == ("v",) else g
        one, two = (beta1, beta2)[::betas]
        m = one * m + (1 - one) * for_m
        v = two * v + (1 - two) * (for_v * for_v if square else for_v)
        if half:
            m, v = m.to(tl.float16).to(tl.float32), v.to(tl.float16).to(tl.float32)
        m_hat = m if "m" not in corrected else m / c1 if by == 1 else m * c1
        v_hat = v if "v" not in corrected else v / c2 if by == 1 else v * c2
        if eps == "inside":
            below = tl.sqrt(v_hat + eps_)
        elif eps == "before":
            below = (tl.sqrt(v) + eps_) / tl.sqrt(c2)
        else:
            below = (tl.sqrt(v_hat) if root else v_hat) + eps_
        shrink = {"decoupled": lr * weight_decay, "without lr": weight_decay}.get(decay, 0)
        p = p * (1 - shrink) - sign * lr * m_hat / below
        if overflow != "ignored":
            p = tl.where(over, old[0], p)
        if overflow == "all":
            m, v = tl.where(over, old[1], m), tl.where(over, old[2], v)
        rounded = (p if low == "new" else old[0]).to(tl.float16)
        return answer(p if kept else rounded.to(tl.float32), m, v, rounded)

    return solve


def test_the_solution_passes():
    verdict = check.fused_update(week08.fused_update)
    assert verdict, verdict
    assert check.fused_update(rule())


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (rule(unscale=()), "Undo that first"),
        (rule(unscale="twice"), "by the scale twice"),
        (rule(unscale=("v",)), "Unscale before both moments"),
        (rule(unscale=("m",)), "Unscale before you square"),
        (rule(decay="coupled"), "the decay is decoupled"),
        (rule(decay="none"), "Where is the weight decay"),
        (rule(decay="without lr"), "lr · weight_decay"),
        (rule(betas=-1), "Which beta belongs"),
        (rule(square=False), "squares of the gradients"),
        (rule(half=True), "have lost digits"),
        (rule(corrected=()), "they are too small in the first steps"),
        (rule(corrected=("m",)), "The second moment starts at 0"),
        (rule(corrected=("v",)), "The first moment starts at 0"),
        (rule(by=-1), "divide them by the corrections"),
        (rule(eps="inside"), "not to the variance under it"),
        (rule(eps="before"), "after the second moment is corrected"),
        (rule(root=False), "Divide by the root"),
        (rule(sign=-1), "Which sign leads down"),
        (rule(overflow="ignored"), "After an overflow nothing changes"),
        (rule(overflow="p"), "remains in an average for ever"),
        (rule(low="old"), "Round the new one"),
        (rule(kept=False), "which keeps the small updates"),
        (rule(answer=lambda p, m, v, low: (p, m, v)), "Return four blocks"),
        (rule(answer=lambda p, m, v, low: (p, m, v, 1.0)), "Return four blocks"),
        (rule(answer=lambda p, m, v, low: None), "Return four blocks"),
        (rule(answer=lambda p, m, v, low: (p, m.to(tl.float16), v, low)), "m is kept in fp32"),
        (rule(answer=lambda p, m, v, low: (p, m, v, p)), "low is kept in fp16"),
        (rule(answer=lambda p, m, v, low: (p + 1, m, v, low)), "Compare line by line"),
    ],
)
def test_each_mistake_is_told(mistake, hint):
    told(check.fused_update(mistake), hint)


def test_the_stub_and_an_error():
    def stub(*_):
        raise NotImplementedError

    def failing(p, *_):
        return p.no_such_method()

    assert check.fused_update(stub).status == "not written yet"
    verdict = check.fused_update(failing)
    assert verdict.status == "wrong"
    assert "no_such_method" in verdict.finding
    assert "in failing" in verdict.finding
    assert "helpers/check" not in verdict.finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.fused_update, week08.fused_update))


WHERES = [
    "the first step, without decay",
    "the third step, without decay",
    "the third step, with decay",
    "the third step, after an overflow",
]


@pytest.mark.parametrize("place", range(4))
def test_a_mistake_in_one_case_alone_is_found(place):
    """Off by 1e-5 in one of the four blocks; what float32 rounds is right."""

    def off(by):
        def answer(*blocks):
            changed = [*blocks]
            more = changed[place].to(tl.float32) + by
            changed[place] = more.to(changed[place].dtype)
            return tuple(changed)

        return rule(answer=answer)

    by = 1e-5 if place < 3 else 2e-3
    found = found_alone(check.fused_update, off(1e-6 if place < 3 else 0.0), off(by))
    kind = ("p", "m", "v", "low")[place]
    assert [finding.split(f": {kind}[0] is ")[0] for finding in found] == WHERES
    assert all("it should be" in finding and "; " in finding for finding in found)


def cases_of(checked) -> list:
    """The arguments of each call that a check makes of the solution."""
    cases = []

    class Listening(elsewhere.Here):
        def call(self, fn, arguments):
            cases.append(copy.deepcopy(arguments))
            return super().call(fn, arguments)

    with elsewhere.at(Listening()):
        assert checked(week08.fused_update)
    return cases


def test_the_numbers_of_each_case():
    cases = cases_of(check.fused_update)
    assert [(overflow, n["weight_decay"]) for _, overflow, n in cases] == [
        (False, 0.0), (False, 0.0), (False, 0.5), (True, 0.5),
    ]  # fmt: skip
    corrections = [(n["correction1"], n["correction2"]) for _, _, n in cases]
    assert corrections == [(0.25, 0.5), *[(1 - 0.75**3, 1 - 0.5**3)] * 3]
    for (given, overflow, _), step in zip(cases, (1, 3, 3, 3), strict=True):
        assert given["g"].isinf().any() == overflow
        assert sum(g > 0 for g in given["g"].tolist()) == 4 + overflow
        assert given["m"].any() == given["v"].any() == (step == 3)
        assert (given["p"].half().float() != given["p"]).sum() > len(given["p"]) / 2
        assert given["g"].dtype.itemsize == 2
    assert (cases[1][0]["m"] < 0).any()


def test_a_block_of_another_type_is_told_by_name():
    half = tl.float16
    for answer, words in (
        (lambda p, m, v, low: (p.to(half), m, v, low), "p is a block of fp16"),
        (lambda p, m, v, low: (p, m, v.to(half), low), "v is a block of fp16"),
    ):
        verdict = check.fused_update(rule(answer=answer))
        assert words in verdict.finding, verdict
        assert ("stops moving" in verdict.hint) == words.startswith("v")
    verdict = check.fused_update(rule(answer=lambda p, m, v, low: (p, m, v, p)))
    assert "rounds to the nearest number" in verdict.hint


def test_the_first_wrong_number_of_each_block_is_told():
    cases = cases_of(check.fused_update)
    exact = {kind: torch.from_numpy(rows) for kind, rows in right(*cases[2]).items()}
    found = {"misfit": "", "types": dict(TYPES), **exact}
    judge(found, *cases[2])
    for kind in KINDS:
        made = exact[kind].clone()
        made[BLOCK - 3] += 0.25
        made[BLOCK - 1] = torch.nan
        with pytest.raises(NotRight) as wrong:
            judge(found | {kind: made}, *cases[2])
        place = BLOCK - 3
        assert wrong.value.finding == (
            f"{kind}[{place}] is {made[place]:.6g}; it should be {exact[kind][place]:.6g}"
        )
        assert "Compare line by line" in wrong.value.hint
    both = {kind: exact[kind] + torch.arange(BLOCK) for kind in ("m", "low")}
    with pytest.raises(NotRight) as wrong:
        judge(found | both, *cases[2])
    assert re.findall(r"(\w+\[\d+\]) is ", wrong.value.finding) == ["m[1]", "low[1]"]
