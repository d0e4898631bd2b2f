"""Counts agree with measured runs, with published figures, and with each other."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measure.flops import flops_of
from helpers.measure.memory import SavedTensors, memory_of, own, storages
from helpers.models.config import CHOICES, PRESETS, GPTConfig
from helpers.models.counts import (
    CONVENTIONS,
    activation_bytes,
    block_activation_bytes,
    flops_per_token,
    korthikanti_activation_bytes,
    parameters,
)
from helpers.models.gpt import GPT, build, loss_sum
from helpers.models.latent_config import Latent
from helpers.models.ssm_settings import Mamba2Settings, MambaSettings

PUBLISHED = json.loads(Path(__file__).with_name("published_counts.json").read_text())
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}


@st.composite
def configs(draw):
    """Small configurations of every kind."""
    heads = draw(st.sampled_from([1, 2, 3, 4]))
    head_width = draw(st.sampled_from([2, 4, 6, 8]))
    choices = {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}
    latent = None
    if choices["mixer"] == "latent" and draw(st.booleans()):
        widths = {name: draw(st.integers(1, 5)) for name in ("kv_rank", "nope", "value")}
        rope, rank = draw(st.sampled_from([4, 6])), draw(st.sampled_from([None, 7]))
        latent = Latent(**widths, rope=rope, query_rank=rank)
    sizes = {name: draw(st.integers(1, 3)) for name in ("state", "expand", "convolution")}
    divisors = [kv_heads for kv_heads in range(1, heads + 1) if heads % kv_heads == 0]
    return GPTConfig(
        vocab=draw(st.sampled_from([5, 11])),
        context=draw(st.sampled_from([4, 7])),
        width=heads * head_width,
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *divisors])),
        hidden=draw(st.sampled_from([None, 5, 16])),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.3])),
        latent=latent,
        mamba=MambaSettings(**sizes, rank=draw(st.sampled_from([None, 2]))),
        mamba2=Mamba2Settings(**sizes, head=2, chunk=draw(st.sampled_from([1, 3, 8]))),
        **choices,
    )


def batch_of(config, sequences, tokens):
    generator = torch.Generator().manual_seed(0)
    shape = (sequences, tokens)
    return [torch.randint(config.vocab, shape, generator=generator) for _ in "xy"]


def step_of(config, sequences, tokens, dtype=torch.float32):
    model = build(config, dtype=dtype)
    x, y = batch_of(config, sequences, tokens)
    return model, lambda: loss_sum(model(x), y)[0].backward()


every_attention = pytest.mark.parametrize("attention", CHOICES["attention"])
every_recompute = pytest.mark.parametrize("recompute", CHOICES["recompute"])


@every_recompute
@every_attention
@given(config=configs(), sequences=st.integers(0, 3), dtype=st.sampled_from(DTYPES), data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_activations_are_what_autograd_saves(attention, recompute, config, sequences, dtype, data):
    config = replace(config, attention=attention, recompute=recompute)
    tokens = data.draw(st.integers(1, config.context))
    model, step = step_of(config, sequences, tokens, dtype)
    excepted = storages(own([model]))
    saved = SavedTensors(lambda: excepted)
    with saved:
        step()
    assert saved.peak == activation_bytes(config, sequences, tokens, dtype)


@every_recompute
@every_attention
def test_activations_and_parameters_of_memory_of(attention, recompute):
    config = GPTConfig(attention=attention, recompute=recompute)
    model, step = step_of(config, 2, 16)
    found = memory_of(step, model)
    assert found.activations == activation_bytes(config, 2, 16)
    assert found.parameters == found.gradients == 4 * parameters(config).total


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


@given(configs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_parameters_by_what_they_do(config):
    count = parameters(config)
    model = GPT(config, device="meta")
    by_part = dict.fromkeys(("embedding", "positions", "head", "norms"), 0)
    by_part |= dict.fromkeys(("mixers", "mlp", "biases", "others"), 0)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            part = "norms"
        elif name.endswith("bias"):
            part = "biases"
        elif "convolution" in name or name.endswith("A_log"):
            part = "others"
        elif name.startswith("blocks") and ".mlp." not in name:
            part = "mixers" if parameter.dim() == 2 else "others"
        else:
            part = next(p for p in ("mlp", "embedding", "positions", "head") if p in name)
        by_part[part] += parameter.numel()
    assert {part: getattr(count, part) for part in by_part} == by_part
    assert count.total == sum(by_part.values())
    assert count.blocks == count.total - sum(by_part[p] for p in ("embedding", "positions", "head"))


@pytest.mark.parametrize("name", PUBLISHED["parameters"]["exact"])
def test_parameters_of_released_models(name):
    assert parameters(GPTConfig.preset(name)).total == PUBLISHED["parameters"]["exact"][name]


@pytest.mark.parametrize("name", PUBLISHED["parameters"]["printed_billions"])
def test_parameters_in_tables(name):
    billions = parameters(GPTConfig.preset(name)).total / 1e9
    assert round(billions, 1) == PUBLISHED["parameters"]["printed_billions"][name]


def test_kaplan_non_embedding_is_12_layers_width_squared():
    for name in ("124M", "1.5B", "175B"):
        config = GPTConfig.preset(name)
        assert parameters(config).non_embedding == 12 * config.layers * config.width**2
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


@pytest.mark.parametrize("row", PUBLISHED["megatron"]["rows"], ids=lambda row: row["name"])
def test_exact_flops_give_megatrons_utilization(row):
    """Korthikanti et al. count like "exact": explicit attention, and the head."""
    facts = PUBLISHED["megatron"]
    shape = {name: row[name] for name in ("width", "layers", "heads")}
    shape |= {name: facts[name] for name in ("context", "vocab")}
    config = GPTConfig(**shape, **GPT2_LIKE, attention="explicit")
    tokens = row["batch"] * facts["context"]
    percent = 100 * tokens * flops_per_token(config) / row["gpus"] / facts["peak_flops"]
    off = 0.05 + percent / row["seconds"] * 0.005 / row["seconds"]  # both are printed rounded
    assert percent / row["seconds"] == pytest.approx(row["utilization_percent"], abs=off)


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


def test_korthikanti_table():
    facts = PUBLISHED["korthikanti"]
    shapes = {"gpt3": GPTConfig.preset("175B")}
    mt_nlg = PUBLISHED["mt_nlg"]
    names = ("width", "layers", "heads", "context", "vocab")
    shapes["mt_nlg"] = GPTConfig(**{name: mt_nlg[name] for name in names}, **GPT2_LIKE)
    for name, config in shapes.items():
        sbh = 3 * config.context * config.width
        none = korthikanti_activation_bytes(config, 3)
        selective = korthikanti_activation_bytes(config, 3, recompute="selective")
        assert none - selective == facts["scores"][name] * sbh
        assert selective == 34 * sbh
        saved = 100 * (1 - selective / none)
        assert round(saved) == facts["selective_saves_percent"][name]
        assert korthikanti_activation_bytes(config, 3, recompute="full") == 2 * sbh
        over = facts["over_sbh_at_t_8"]
        sharded = {"recompute": "selective", "tensor": 8}
        assert korthikanti_activation_bytes(config, 3, **sharded) == over["tensor"] * sbh
        both = korthikanti_activation_bytes(config, 3, **sharded, sequence_parallel=True)
        assert both == over["tensor_and_sequence"] * sbh
        # tensor and sequence parallelism together shard everything
        alone = korthikanti_activation_bytes(config, 3, tensor=8, sequence_parallel=True)
        assert alone == none / 8


@every_recompute
def test_ours_is_korthikantis_without_dropout(recompute):
    """In 16 bits, their layer differs from ours in dropout, the norms' statistics and the mask."""
    config = GPTConfig(width=64, heads=4, attention="explicit", recompute=recompute, **GPT2_LIKE)
    sequences, tokens = 3, 16
    places = sequences * tokens
    theirs = korthikanti_activation_bytes(config, sequences, tokens)
    if recompute != "full":
        theirs -= 2 * places * config.width  # two masks
        theirs += 2 * 2 * 2 * places  # mean and inverse deviation of two norms
    if recompute == "none":
        theirs -= 3 * config.heads * tokens * places  # a mask, and the dropped probabilities
        theirs += tokens**2
    assert block_activation_bytes(config, sequences, tokens, torch.bfloat16) == theirs


@every_attention
def test_recomputing_keeps_less(attention):
    config = GPTConfig(attention=attention)
    none, selective, full = (
        activation_bytes(replace(config, recompute=recompute), 2)
        for recompute in CHOICES["recompute"]
    )
    assert full < selective < none
    flops = [
        flops_per_token(replace(config, recompute=recompute), part="recomputed")
        for recompute in CHOICES["recompute"]
    ]
    assert flops[0] == 0 < flops[1] < flops[2]


def test_presets_need_no_model():
    for name in PRESETS:
        config = GPTConfig.preset(name)
        assert activation_bytes(config, 1, dtype=torch.bfloat16) > 0
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
        for count in (
            lambda tokens=tokens: flops_per_token(config, tokens),
            lambda tokens=tokens: activation_bytes(config, 1, tokens),
            lambda tokens=tokens: block_activation_bytes(config, 1, tokens),
            lambda tokens=tokens: korthikanti_activation_bytes(config, 1, tokens),
        ):
            with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 64"):
                count()
    with pytest.raises(ValueError, match="recompute must be none"):
        korthikanti_activation_bytes(config, 1, recompute="some")
    with pytest.raises(ValueError, match="tensor must be at least 1"):
        korthikanti_activation_bytes(config, 1, tensor=0)
