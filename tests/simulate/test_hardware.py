"""The constants are what was published, and what the chips' build gives; the roofline is a min."""

import copy
import json
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.simulate.hardware import A100, H100, H200, PROCESSORS, TPU_V4, TPU_V5P, Processor

approx = partial(pytest.approx, rel=1e-12)  # the same decimal number, typed in another unit
FILE = json.loads(Path(__file__).with_name("published_processors.json").read_text())
PUBLISHED = FILE["processors"]
BUILDS = {name: facts for name, facts in PUBLISHED.items() if "cores" in facts}
by_name = {processor.name: processor for processor in PROCESSORS}


def test_all_are_published():
    assert list(by_name) == list(PUBLISHED)
    assert (A100, H100, H200, TPU_V4, TPU_V5P) == PROCESSORS


@pytest.mark.parametrize("name", PUBLISHED)
def test_printed_figures(name):
    printed, processor = PUBLISHED[name], by_name[name]
    types = {"bf16": "bfloat16", "tf32": "tfloat32", "fp8": "float8"}
    for short, dtype in types.items():
        if f"{short}_dense_tflops" in printed:
            assert processor.peak(dtype) == approx(printed[f"{short}_dense_tflops"] * 1e12)
    if "float16" in processor.peak_flops:  # the same units multiply both
        assert processor.peak("float16") == processor.peak("bfloat16")
    if "fp32_tflops" in printed:
        assert processor.peak("float32") == approx(printed["fp32_tflops"] * 1e12)
        assert processor.peak("float64") == approx(printed["fp64_tensor_tflops"] * 1e12)
    if "bf16_sparse_tflops" in printed:  # printed in whole TFLOP/s
        assert 2 * processor.peak() == pytest.approx(printed["bf16_sparse_tflops"] * 1e12, abs=1e12)
    memory = printed["memory_gb"] * 1e9 if "memory_gb" in printed else printed["memory_gib"] * 2**30
    assert processor.memory_bytes == approx(memory)
    assert processor.memory_bytes_per_second == approx(printed["memory_gb_per_s"] * 1e9)
    if "links_gb_per_s" in printed:
        assert printed["links_printed"] == "both ways"
        assert 2 * processor.link_bytes_per_second_each_way == approx(
            printed["links_gb_per_s"] * 1e9
        )
    assert processor.sources


@pytest.mark.parametrize("name", BUILDS)
def test_the_build_gives_the_peak(name):
    """Cores, matrix units, multiply-adds a clock, clock: published apart from the peak."""
    build = BUILDS[name]
    units = build["cores"] * build["matrix_units_per_core"]
    flops = units * build["multiply_adds_per_clock"] * 2 * build["clock_ghz"] * 1e9
    # Clock and peak are both printed with three digits.
    assert by_name[name].peak() == pytest.approx(flops, rel=2e-3)


@pytest.mark.parametrize("name", BUILDS)
def test_the_links_add_up(name):
    build = BUILDS[name]
    each_way = build["links"] * build["gb_per_s_per_link_each_way"] * 1e9
    assert by_name[name].link_bytes_per_second_each_way == each_way


def test_the_ridge_by_hand():
    assert A100.ridge() == pytest.approx(153.0, abs=0.1)  # 312 / 2.039
    assert H100.ridge() == pytest.approx(295.3, abs=0.1)
    assert H200.ridge() < H100.ridge()  # the same peak, faster memory
    assert A100.ridge("float32") == pytest.approx(9.56, abs=0.01)


def test_the_network_of_each_chip():
    """As printed for the machine or the chip, in Gbit/s."""
    printed = {"A100": 200, "H100": 400, "H200": 400, "TPU v4": None, "TPU v5p": 50}
    for processor in PROCESSORS:
        gbit = printed[processor.name]
        each_way = None if gbit is None else gbit * 1e9 / 8
        assert processor.network_bytes_per_second_each_way == each_way


@given(st.sampled_from(PROCESSORS), st.floats(1e-3, 1e6))
def test_memory_below_the_ridge_computation_above(processor, intensity):
    got = processor.attainable(intensity)
    if intensity < processor.ridge():
        assert got == intensity * processor.memory_bytes_per_second
    else:
        assert got == pytest.approx(processor.peak(), rel=1e-12)
    # The time of an operation and its attainable speed say the same.
    moved = 1e9
    seconds = processor.seconds(intensity * moved, moved)
    assert intensity * moved / seconds == pytest.approx(got, rel=1e-12)


def test_an_unknown_type_is_named():
    with pytest.raises(ValueError, match=r"TPU v4.*'float32'.*only for bfloat16"):
        TPU_V4.peak("float32")


@pytest.mark.parametrize(
    "change",
    [
        {"peak_flops": {}},
        {"peak_flops": {"bfloat16": 0}},
        {"memory_bytes": -1},
        {"memory_bytes_per_second": float("nan")},
        {"link_bytes_per_second_each_way": 0.0},
        {"network_bytes_per_second_each_way": float("inf")},
    ],
)
def test_senseless_numbers(change):
    with pytest.raises(ValueError, match="A100"):
        replace(A100, **change)


def test_it_stands_on_its_own():
    peaks, sources = {"float32": 1.0, "float64": 0.5}, {"peak": "a page"}
    processor = Processor(
        name="x", peak_flops=peaks, memory_bytes=1, memory_bytes_per_second=2.0, sources=sources
    )
    peaks["float32"] = 5.0
    sources["peak"] = "another page"
    assert processor.peak("float32") == 1.0
    assert processor.sources == {"peak": "a page"}
    assert (processor.ridge("float64"), processor.seconds(3, 1, "float64")) == (0.25, 6)
    assert processor.link_bytes_per_second_each_way is None
    assert pickle.loads(pickle.dumps(A100)) == A100 == copy.deepcopy(A100)
    assert len(set(PROCESSORS)) == 5
