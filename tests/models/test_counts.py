"""FLOPs per token agree with measured runs, with published figures, and with each other."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measure.flops import flops_of
from helpers.models.config import CHOICES, PRESETS, GPTConfig
from helpers.models.counts import CONVENTIONS, flops_per_token
from helpers.models.parameter_counts import parameters
from tests.models.random_configs import configs
from tests.models.steps import step_of

PUBLISHED = json.loads(Path(__file__).with_name("published_counts.json").read_text())["megatron"]
every_attention = pytest.mark.parametrize("attention", CHOICES["attention"])
every_recompute = pytest.mark.parametrize("recompute", CHOICES["recompute"])


@every_recompute
@every_attention
@given(config=configs(), sequences=st.integers(1, 2), tokens=st.integers(1, 4))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_flops_are_what_runs(attention, recompute, config, sequences, tokens):
    config = replace(config, attention=attention, recompute=recompute)
    found, places = flops_of(step_of(config, sequences, tokens)[1]), sequences * tokens
    for part in ("forward", "backward", "recomputed"):
        assert getattr(found, part) == places * flops_per_token(config, tokens, part=part), part
    assert found.model == places * flops_per_token(config, tokens)


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_rotary_heads_of_width_2_run_the_fused_kernel(kv_heads):
    config = GPTConfig(vocab=11, context=8, width=8, layers=1, heads=4, kv_heads=kv_heads)
    found = flops_of(step_of(config, 2, 8)[1])
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward" in found.operators
    assert found.forward == 16 * flops_per_token(config, part="forward")
    assert found.backward == 16 * flops_per_token(config, part="backward")


@pytest.mark.parametrize("row", PUBLISHED["rows"], ids=lambda row: row["name"])
def test_exact_flops_give_megatrons_utilization(row):
    """Korthikanti et al. count like "exact": explicit attention, and the head."""
    shape = {name: row[name] for name in ("width", "layers", "heads")}
    shape |= {name: PUBLISHED[name] for name in ("context", "vocab")}
    gpt2_like = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
    config = GPTConfig(**shape, **gpt2_like, attention="explicit")
    tokens = row["batch"] * PUBLISHED["context"]
    percent = 100 * tokens * flops_per_token(config) / row["gpus"] / PUBLISHED["peak_flops"]
    off = 0.05 + percent / row["seconds"] * 0.005 / row["seconds"]  # both are printed rounded
    assert percent / row["seconds"] == pytest.approx(row["utilization_percent"], abs=off)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", ["100k", "124M", "70B"])
def test_parts_add_up(name, convention):
    config = GPTConfig.preset(name)
    forward, backward, training = (
        flops_per_token(config, convention=convention, part=part)
        for part in ("forward", "backward", "training")
    )
    assert training == forward + backward
    assert 2 * forward <= backward < 2.5 * forward
    assert isinstance(training, int)
    # the default is the largest count; each switch changes it
    assert flops_per_token(config, config.context, convention) == training
    switches = [
        flops_per_token(config, convention=convention, attention=attention, embedding=embedding)
        for attention, embedding in ((False, False), (False, True), (True, False), (True, True))
    ]
    assert switches[0] < min(switches[1:3])
    assert max(switches[1:3]) < switches[3]
    assert switches[3] - switches[2] == switches[1] - switches[0]
    assert training == switches[0 if convention == "kaplan" else 3]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_attention_depends_on_the_length_and_the_embedding_on_the_vocabulary(convention):
    config = GPTConfig(context=32, vocab=11)

    def count(tokens, vocab, **switches):
        changed = replace(config, vocab=vocab)
        return flops_per_token(changed, tokens, convention, **switches)

    for attention in (False, True):
        same = count(8, 11, attention=attention, embedding=False)
        assert count(8, 22, attention=attention, embedding=False) == same
        assert (count(16, 11, attention=attention, embedding=False) > same) == attention
    for embedding in (False, True):
        same = count(8, 11, attention=False, embedding=embedding)
        assert count(16, 11, attention=False, embedding=embedding) == same
        assert (count(8, 22, attention=False, embedding=embedding) > same) == embedding


def test_what_is_recomputed_without_the_scores():
    for recompute, expected in (("selective", 0), ("full", 2 * 2 * (4 * 64 * 64 + 2 * 64 * 176))):
        config = GPTConfig(recompute=recompute)
        assert flops_per_token(config, part="recomputed", attention=False) == expected


@every_attention
def test_recomputing_more_costs_more(attention):
    flops = [
        flops_per_token(GPTConfig(attention=attention, recompute=recompute), part="recomputed")
        for recompute in CHOICES["recompute"]
    ]
    assert flops[0] == 0 < flops[1] < flops[2]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_need_no_model(name):
    config = GPTConfig.preset(name)
    assert flops_per_token(config) > 6 * parameters(config).non_embedding


def test_errors_say_what_is_wrong():
    config = GPTConfig()
    with pytest.raises(ValueError, match="convention must be one of exact, kaplan"):
        flops_per_token(config, convention="megatron")
    with pytest.raises(ValueError, match="part must be one of training"):
        flops_per_token(config, part="all")
    with pytest.raises(ValueError, match="palm counts model FLOPs only"):
        flops_per_token(config, convention="palm", part="recomputed")
    for tokens in (0, 65):
        with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 64"):
            flops_per_token(config, tokens)
