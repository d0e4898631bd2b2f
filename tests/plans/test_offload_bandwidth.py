"""The closed forms of ZeRO-Infinity's section 4, and what its text reads off figure 3."""

import pytest

from helpers.plans.offload_bandwidth import KINDS, bandwidth_for, efficiency, intensity

WEIGHTS, STATE, CHECKPOINTS = KINDS
V100, S = 70e12, 1024  # the paper's peak in FLOP/s, and its sequences
GPUS = 512


def test_the_intensities_are_the_paper_s():
    """Equations 9, 10 and 11: seq · bsz, seq · bsz / 4, and 24 · hd · ci."""
    for bsz in (1, 2, 16):
        assert intensity(WEIGHTS, tokens=S * bsz) == S * bsz
        assert intensity(STATE, tokens=S * bsz) == S * bsz / 4
    for hd, ci in ((2048, 1), (8192, 2)):
        assert intensity(CHECKPOINTS, width=hd, every=ci) == 24 * hd * ci


@pytest.mark.parametrize("recompute", [True, False])
def test_the_intensities_are_flops_over_bytes_of_a_whole_model(recompute):
    """Counted term by term, for 3 blocks of width 64 and 5 sequences of 7 tokens."""
    layers, width, tokens = 3, 64, 35
    p = 12 * layers * width**2
    flops = 2 * tokens * p + 4 * tokens * p + 2 * tokens * p * recompute
    passes = 3 if recompute else 2  # that use the parameters
    moved = {WEIGHTS: 2 * p * passes + 2 * p, STATE: 2 * (4 + 4 + 4 + 4) * p}
    for kind, nbytes in moved.items():
        given = {"tokens": tokens, "recompute": recompute}
        assert intensity(kind, **given) == pytest.approx(flops / nbytes)
    if recompute:
        nbytes = layers * 2 * 2 * tokens * width
        assert intensity(CHECKPOINTS, width=width) == pytest.approx(flops / nbytes)


POINTS = {  # kind, its sizes, bytes/second, efficiency that the text reads off, tolerance
    "70 GB/s for parameters: half, at batch 1": (WEIGHTS, {"tokens": S}, 70e9, 0.5, 0.01),
    "4 times as much for the state": (STATE, {"tokens": S}, 4 * 70e9, 0.5, 0.01),
    "1.5 TB/s for the state: 90 %, at batch 2": (STATE, {"tokens": 2 * S}, 1.5e12, 0.9, 0.02),
}


@pytest.mark.parametrize(("kind", "sizes", "rate", "share", "near"), POINTS.values(), ids=POINTS)
def test_what_the_text_says(kind, sizes, rate, share, near):
    assert efficiency(intensity(kind, **sizes), rate, V100) == pytest.approx(share, abs=near)


@pytest.mark.parametrize(("width", "rate"), [(2048, 2e9), (8192, 1e9)])
def test_what_the_text_says_of_checkpoints_holds_with_overlap_only(width, rate):
    """2 GB/s for 2K, 1 GB/s for 8K: "over 80 %". Without overlap the formula gives 58 and 74 %."""
    ratio = intensity(CHECKPOINTS, width=width)
    assert efficiency(ratio, rate, V100, overlap=True) == 1.0
    assert 0.58 < efficiency(ratio, rate, V100) < 0.75


def test_table_3_devices_that_are_10_and_100_times_faster():
    """Its rows: 70, 700 and 7,000 GB/s between GPUs; 3, 30 and 300 GB/s for each GPU's share."""
    for faster in (1, 10, 100):
        peak = V100 * faster
        weights = bandwidth_for(0.5, intensity(WEIGHTS, tokens=S), peak)
        assert weights == pytest.approx(70e9 * faster, rel=0.03)
        state = bandwidth_for(0.9, intensity(STATE, tokens=2 * S), peak) / GPUS
        assert state == pytest.approx(3e9 * faster, rel=0.25)  # the text rounds 1.23 up to 1.5 TB/s


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_the_bandwidth_is_the_inverse(share, overlap):
    ratio = intensity(STATE, tokens=4096)
    rate = bandwidth_for(share, ratio, 1e14, overlap=overlap)
    assert efficiency(ratio, rate, 1e14, overlap=overlap) == pytest.approx(share)
    assert efficiency(ratio, 2 * rate, 1e14, overlap=overlap) > share


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: intensity("weights", tokens=1), "no kind 'weights'"),
        (lambda: intensity(WEIGHTS, width=8), "needs the tokens"),
        (lambda: intensity(CHECKPOINTS, tokens=8), "need a width"),
        (lambda: intensity(CHECKPOINTS, width=8, recompute=False), "and recomputation"),
        (lambda: bandwidth_for(1.0, 1.0, 1.0), "1 needs an overlap"),
        (lambda: bandwidth_for(0.0, 1.0, 1.0), "between 0 and 1"),
    ],
)
def test_nonsense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
