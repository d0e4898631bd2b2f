"""The update as a loop in C: the same numbers as torch.optim.AdamW, and what it refuses."""

import re
import shutil

import pytest
import torch

from helpers.measure.kernels import in_c
from helpers.precision.fused_adam import loop

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_it_equals_adamw_and_refuses_other_tensors():
    update = loop.compiled_loop()
    p, g, m, v = (x.clone() for x in torch.randn(4, 13, 77))
    m.zero_()
    v.zero_()
    other = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.AdamW([other], lr=0.1, betas=(0.8, 0.9), weight_decay=0.5)
    for step in range(1, 4):
        other.grad = g * step
        update(p, g * step, m, v, step, 0.1, (0.8, 0.9), 1e-8, 0.5)
        optimizer.step()
    for mine, theirs in zip(
        (p, m, v), (other, *list(optimizer.state[other].values())[1:]), strict=True
    ):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)
    for wrong in (g.double(), g[:-1], torch.zeros(13, 154)[:, ::2]):
        with pytest.raises(ValueError, match="contiguous float32"):
            update(p, wrong, m, v, 1, 0.1, (0.8, 0.9), 1e-8, 0.5)


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(in_c.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="install gcc or clang"):
        loop.compiled_loop()


@needs_compiler
def test_a_source_that_does_not_compile(monkeypatch):
    monkeypatch.setattr(loop, "SOURCE", "void update(")
    with pytest.raises(RuntimeError, match=r"(?s)cc could not compile the loop:.*error"):
        loop.compiled_loop()


def test_the_counts_are_those_of_the_source():
    body = re.search(r"for \(.*?\{(.*?)\n    \}", loop.SOURCE, re.DOTALL)[1]
    arithmetic = re.sub(r"\w+\[i\] =|\bf?sqrtf\b", lambda x: "√" if "sqrt" in x[0] else "", body)
    assert len(re.findall(r"\+=|[-+*/√]", arithmetic)) == loop.FLOPS
    written = set(re.findall(r"(\w)\[i\] \+?=", body))
    read = set(re.findall(r"(\w)\[i\]", body))
    assert 4 * (len(read) + len(written)) == loop.BYTES
