"""The published models have the parameters of the released checkpoints."""

import json
from pathlib import Path

import pytest

from helpers.models.parameter_counts import parameters
from helpers.models.published import MODELS

FACTS = json.loads(Path(__file__).with_name("published_caches.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name):
    assert round(MODELS[name].parameters / 1e9, 1) == FACTS["parameters_billions"][name]
    assert MODELS[name].source


def test_the_shapes_that_a_cache_depends_on():
    """(layers, heads, key/value heads, width, context) of the released configurations."""
    found = {
        name: (c.layers, c.heads, c.key_heads, c.width, c.context)
        for name, c in ((name, model.config) for name, model in MODELS.items())
    }
    assert found == {
        "Llama 2 7B": (32, 32, 32, 4096, 4096),
        "Llama 2 70B": (80, 64, 8, 8192, 4096),
        "DeepSeek 67B": (95, 64, 8, 8192, 4096),
        "Llama 3 405B": (126, 128, 8, 16_384, 131_072),
        "DeepSeek-V2": (60, 128, 128, 5120, 131_072),
    }


def test_deepseek_v2_is_its_attention_and_its_experts():
    """59 blocks have a router, 2 shared and 160 routed experts of width 1,536 (section 3.1.2)."""
    model = MODELS["DeepSeek-V2"]
    c = model.config
    expert, dense = 3 * c.width * 1536, 3 * c.width * c.hidden
    experts = 59 * ((160 + 2) * expert + 160 * c.width - dense)
    assert parameters(c).total + experts == model.parameters
