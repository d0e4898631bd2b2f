"""The papers' FLOPs agree with the papers' figures."""

import json
from pathlib import Path

import pytest

from helpers.models.config import GPTConfig
from helpers.models.counts import flops_per_token
from helpers.models.flop_conventions import FORWARD
from helpers.models.parameter_counts import parameters

PUBLISHED = json.loads(Path(__file__).with_name("published_counts.json").read_text())
GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}


@pytest.mark.parametrize("name", ["124M", "1.5B", "175B"])
def test_kaplan_is_6_n_by_default(name):
    config = GPTConfig.preset(name)
    assert flops_per_token(config, convention="kaplan") == 6 * parameters(config).non_embedding


def test_kaplan_forward_with_its_context():
    config = GPTConfig.preset("124M")
    longer = flops_per_token(config, 512, "kaplan", part="forward", attention=True)
    scores = 2 * config.layers * 512 * config.width
    assert longer == 2 * parameters(config).non_embedding + scores
    # table 1's rows "embed" and "de-embed"
    rows = flops_per_token(config, convention="kaplan", part="forward", embedding=True)
    rows -= flops_per_token(config, convention="kaplan", part="forward")
    assert rows == 4 * config.width + 2 * config.width * config.vocab
    # the exact count includes the half that the mask hides: twice as much
    without = flops_per_token(config, 512, part="forward", attention=False)
    assert flops_per_token(config, 512, part="forward") - without == 2 * scores
    head = 2 * config.vocab * config.width
    assert without - flops_per_token(config, 512, "kaplan", part="forward") == head


def test_gpt3_training_flops():
    facts = PUBLISHED["gpt3_training"]
    a_token = flops_per_token(GPTConfig.preset("175B"), convention="palm", attention=False)
    assert f"{a_token * facts['tokens']:.2e}" == f"{facts['flops']:.2e}"


def test_palm_utilization_of_mt_nlg():
    facts = PUBLISHED["mt_nlg"]
    shape = {name: facts[name] for name in ("width", "layers", "heads", "context", "vocab")}
    config = GPTConfig(**shape, **GPT2_LIKE)
    rate = 100 * facts["tokens_per_second"] / (facts["gpus"] * facts["peak_flops"])
    for attention, printed in ((False, ""), (True, "_with_attention")):
        found = rate * flops_per_token(config, convention="palm", attention=attention)
        # the throughput has four digits, so the percentage has one decimal place
        assert found == pytest.approx(facts[f"utilization{printed}_percent"], abs=0.06)


@pytest.mark.parametrize("row", PUBLISHED["chinchilla"]["rows"], ids=lambda row: row["millions"])
def test_chinchilla_ratios(row):
    shape = {name: row[name] for name in ("width", "layers", "heads", "hidden")}
    config = GPTConfig(**shape, context=PUBLISHED["chinchilla"]["context"], **GPT2_LIKE)
    flops = flops_per_token(config, convention="chinchilla", embedding=False)
    ratio = flops / (6 * row["millions"] * 1e6)
    assert ratio == pytest.approx(row["ratio"], abs=0.005 + ratio * 0.5 / row["millions"])


def test_chinchilla_by_hand():
    config = GPTConfig(vocab=10, context=4, width=8, layers=3, heads=2, **GPT2_LIKE)
    # a sequence of 4: projections, scores, softmax, values, last linear; dense; two embeddings
    attention = 2 * 3 * 4 * 8 * 8 + 2 * 4 * 4 * 8 + 3 * 2 * 4 * 4 + 2 * 4 * 4 * 8 + 2 * 4 * 8 * 8
    dense = 2 * 4 * (8 * 32 + 8 * 32)
    forward = 3 * (attention + dense) + 2 * (2 * 4 * 10 * 8)
    assert 4 * flops_per_token(config, convention="chinchilla", part="forward") == forward
    assert 4 * flops_per_token(config, convention="chinchilla") == 3 * forward


@pytest.mark.parametrize("convention", FORWARD)
def test_no_paper_counts_the_scores_of_other_mixers(convention):
    config = GPTConfig(mixer=("attention", "mamba"))
    with pytest.raises(ValueError, match=f"'{convention}' counts scores of mixer 'attention' only"):
        flops_per_token(config, convention=convention, attention=True)
    assert flops_per_token(config, convention=convention, attention=False) > 0


def test_palm_counts_all_parameters_or_those_of_the_blocks():
    """With biases and norms, which the other conventions leave out."""
    config = GPTConfig(vocab=10, context=4, width=8, layers=3, heads=2, tied=False, **GPT2_LIKE)
    block = 4 * 8 * 8 + 2 * 8 * 32 + 4 * 8 + 32 + 8 + 4 * 8  # matrices, biases, two norms
    blocks = 3 * block + 2 * 8  # and the last norm
    found = flops_per_token(config, convention="palm", attention=False, embedding=False)
    assert found == 6 * blocks
    found = flops_per_token(config, 3, convention="palm", part="forward")
    assert found == 2 * (blocks + 2 * 10 * 8 + 4 * 8) + 4 * 3 * 8 * 3
