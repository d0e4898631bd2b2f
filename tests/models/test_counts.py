"""Parameters and FLOPs agree with the model, with measured runs and with published figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measure.flops import flops_of
from helpers.models.bamba import bamba
from helpers.models.counts import flops_per_token, parameters
from helpers.models.gpt import GPT, GPTConfig
from helpers.models.published import SPARSE
from helpers.models.settings import ExpertSettings, Mamba2Settings
from helpers.models.shape import CHOICES
from tests.models.random_configs import configs
from tests.models.steps import step_of

PUBLISHED = json.loads(Path(__file__).with_name("published_counts.json").read_text())
MEGATRON, RELEASED = PUBLISHED["megatron"], PUBLISHED["parameters"]
GPT2_LIKE = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
SSM = {"width": 768, "layers": 24, "heads": 1, "mlp": "none", "positions": "none"}
every_attention = pytest.mark.parametrize("attention", CHOICES["attention"])
every_recompute = pytest.mark.parametrize("recompute", CHOICES["recompute"])


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


@pytest.mark.parametrize(
    ("name", "config", "total"),
    [
        *((name, GPTConfig.preset(name), total) for name, total in RELEASED["exact"].items()),
        # the authors' checkpoints: vocabularies padded to 50 280 and 50 288
        ("mamba", GPTConfig(vocab=50_280, mixer="mamba", **SSM), 129_135_360),
        ("mamba2", GPTConfig(vocab=50_288, mixer="mamba2", **SSM), 128_989_632),
    ],
)
def test_parameters_of_released_models(name, config, total):
    assert parameters(config).total == total


def test_parameters_in_tables():
    printed = RELEASED["printed_billions"]
    found = {name: parameters(GPTConfig.preset(name)).total / 1e9 for name in printed}
    assert {name: round(billions, 1) for name, billions in found.items()} == printed
    assert round(parameters(bamba()).total / 1e9, 2) == 9.78  # the model card
    for name in ("124M", "1.5B", "175B"):
        config = GPTConfig.preset(name)
        assert parameters(config).non_embedding == 12 * config.layers * config.width**2


# the released checkpoints, and the billions that their papers print, total and active
@pytest.mark.parametrize(
    ("name", "total", "printed"),
    [
        ("Mixtral 8x7B", 46_702_792_704, (47, 13)),
        ("DeepSeek-V2", 235_741_434_880, (236, 21)),
        ("DeepSeek-V3", 671_026_419_200, (671, 37)),
        ("Qwen3-235B-A22B", 235_093_634_560, (235, 22)),
    ],
)
def test_parameters_of_models_with_experts(name, total, printed):
    model = SPARSE[name]
    assert model.parameters == total
    table = parameters(model.config).embedding  # DeepSeek-V3's 37 leave it out: it is no product
    active = model.active - (table if name == "DeepSeek-V3" else 0)
    assert (round(total / 1e9), round(active / 1e9)) == printed
    count, c = parameters(model.config), model.config
    assert flops_per_token(c, 1, part="forward", attention=False) == 2 * (
        count.multiplied + c.vocab * c.width
    )


@given(
    count=st.integers(1, 4),
    share=st.floats(0, 1),
    shared=st.integers(0, 2),
    after=st.integers(0, 1),
    hidden=st.sampled_from([None, 3]),
    recompute=st.sampled_from(CHOICES["recompute"]),
    dropout=st.sampled_from([0.0, 0.2]),
    mixer=st.sampled_from(["attention", "mamba2"]),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_flops_of_experts_are_what_runs(
    count, share, shared, after, hidden, recompute, dropout, mixer
):
    chosen = max(1, round(share * count))
    given = {"normalized": chosen > 1, "bias_rate": 0.1}
    experts = ExpertSettings(
        count=count, chosen=chosen, shared=shared, after=after, hidden=hidden, **given
    )
    config = GPTConfig(
        **{"width": 12, "heads": 3, "context": 9, "layers": 3, "hidden": 8, "experts": experts},
        **{"recompute": recompute, "dropout": dropout, "mixer": mixer, "positions": "none"},
        mamba2=Mamba2Settings(state=5, head=8, chunk=3),
    )
    model, step = step_of(config, 2, 5)
    found = flops_of(step)
    for part in ("forward", "backward", "recomputed"):
        assert getattr(found, part) == 10 * flops_per_token(config, 5, part=part), part
    total = parameters(config)
    assert total.total == sum(p.numel() for p in model.parameters())
    inner = config.inner if hidden is None else hidden
    assert total.idle == (3 - after) * (count - chosen) * 3 * 12 * inner


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


@given(
    mixer=st.lists(st.sampled_from(CHOICES["mixer"]), min_size=1, max_size=4),
    mlp=st.sampled_from(CHOICES["mlp"]),
    recompute=st.sampled_from(CHOICES["recompute"]),
    dropout=st.sampled_from([0.0, 0.2]),
    tokens=st.integers(1, 9),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_flops_of_hybrids_are_what_runs(mixer, mlp, recompute, dropout, tokens):
    """Each mixer counts as often as it occurs; the last matrix is not recomputed."""
    sizes = Mamba2Settings(state=5, head=8, chunk=3)
    config = GPTConfig(
        **{"width": 12, "heads": 3, "context": 9, "positions": "none", "mamba2": sizes},
        **{"mixer": tuple(mixer), "layers": len(mixer), "mlp": mlp},
        **{"recompute": recompute, "dropout": dropout},
    )
    model, step = step_of(config, 2, tokens)
    found = flops_of(step)
    for part in ("forward", "backward", "recomputed"):
        expected = 2 * tokens * flops_per_token(config, tokens, part=part)
        assert getattr(found, part) == expected, part
    assert parameters(config).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_rotary_heads_of_width_2_run_the_fused_kernel(kv_heads):
    config = GPTConfig(vocab=11, context=8, width=8, layers=1, heads=4, kv_heads=kv_heads)
    found = flops_of(step_of(config, 2, 8)[1])
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward" in found.operators
    assert found.forward == 16 * flops_per_token(config, part="forward")
    assert found.backward == 16 * flops_per_token(config, part="backward")


@pytest.mark.parametrize("row", MEGATRON["rows"], ids=lambda row: row["name"])
def test_exact_flops_give_megatrons_utilization(row):
    """Korthikanti et al. count like "exact": explicit attention, and the head."""
    shape = {name: row[name] for name in ("width", "layers", "heads")}
    shape |= {name: MEGATRON[name] for name in ("context", "vocab")}
    config = GPTConfig(**shape, **GPT2_LIKE, attention="explicit")
    tokens = row["batch"] * MEGATRON["context"]
    percent = 100 * tokens * flops_per_token(config) / row["gpus"] / MEGATRON["peak_flops"]
    off = 0.05 + percent / row["seconds"] * 0.005 / row["seconds"]  # both are printed rounded
    assert percent / row["seconds"] == pytest.approx(row["utilization_percent"], abs=off)


@pytest.mark.parametrize("name", ["100k", "124M", "70B"])
def test_parts_add_up(name):
    config = GPTConfig.preset(name)
    forward, backward, training = (
        flops_per_token(config, part=part) for part in ("forward", "backward", "training")
    )
    assert training == forward + backward
    assert 2 * forward <= backward < 2.5 * forward
    assert isinstance(training, int)
    # the default is the largest count; each switch changes it
    assert flops_per_token(config, config.context) == training
    switches = [
        flops_per_token(config, attention=attention, embedding=embedding)
        for attention, embedding in ((False, False), (False, True), (True, False), (True, True))
    ]
    assert switches[0] < min(switches[1:3])
    assert max(switches[1:3]) < switches[3]
    assert switches[3] - switches[2] == switches[1] - switches[0]
    assert training == switches[3]


def test_attention_depends_on_the_length_and_the_embedding_on_the_vocabulary():
    config = GPTConfig(context=32, vocab=11)

    def count(tokens, vocab, **switches):
        changed = replace(config, vocab=vocab)
        return flops_per_token(changed, tokens, **switches)

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


def test_errors_say_what_is_wrong():
    config = GPTConfig()
    with pytest.raises(ValueError, match="part must be one of training"):
        flops_per_token(config, part="all")
    for tokens in (0, 65):
        with pytest.raises(ValueError, match=f"{tokens} tokens; the context allows 1 to 64"):
            flops_per_token(config, tokens)
