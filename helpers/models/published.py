"""Published language models: the course compares their caches and their experts."""

from dataclasses import dataclass

from helpers.models.counts import parameters
from helpers.models.gpt import GPTConfig
from helpers.models.settings import ExpertSettings, Latent


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published model.

    Attributes:
        config: its shape.
        source: where the shape is from.
        unlike: numbers of parameters that `config` has not.
    """

    config: GPTConfig
    source: str
    unlike: int = 0

    @property
    def parameters(self) -> int:
        """All of them, experts included."""
        return parameters(self.config).total + self.unlike

    @property
    def active(self) -> int:
        """The parameters that a token needs: all but for the experts that it did not choose."""
        return parameters(self.config).active + self.unlike


DEEPSEEK = {"heads": 128, "tied": False, "norm_eps": 1e-6, "mixer": "latent"}
DEEPSEEK["latent"] = Latent(kv_rank=512, query_rank=1536, nope=128, rope=64, value=128)
V2 = {"vocab": 102_400, "context": 131_072, "width": 5120, "layers": 60, "hidden": 12_288}
V2_EXPERTS = {"count": 160, "chosen": 6, "hidden": 1536, "shared": 2, "after": 1}
V2_EXPERTS |= {"normalized": False, "scale": 16.0, "groups": 8, "limit": 3}
V3 = {"vocab": 129_280, "context": 163_840, "width": 7168, "layers": 61, "hidden": 18_432}
V3_EXPERTS = {"count": 256, "chosen": 8, "hidden": 2048, "shared": 1, "after": 3, "scale": 2.5}
V3_EXPERTS |= {"score": "sigmoid", "groups": 8, "limit": 4, "loss_rate": 1e-4, "bias_rate": 1e-3}
MIXTRAL = {"vocab": 32_000, "context": 32_768, "width": 4096, "layers": 32, "heads": 32}
MIXTRAL |= {"kv_heads": 8, "hidden": 14_336, "rotary_base": 1e6}
QWEN3 = {"vocab": 151_936, "context": 40_960, "width": 4096, "layers": 94, "heads": 64, "head": 128}
QWEN3 |= {"kv_heads": 4, "tied": False, "norm_eps": 1e-6, "rotary_base": 1e6}

MODELS = {  # whose caches are compared
    "Llama 2 7B": Published(
        config=GPTConfig.preset("7B"),
        source="Touvron et al. 2023, arXiv:2307.09288; released config.json",
    ),
    "Llama 2 70B": Published(
        config=GPTConfig.preset("70B"),
        source="Touvron et al. 2023, arXiv:2307.09288; released config.json",
    ),
    "DeepSeek 67B": Published(
        config=GPTConfig.preset("70B", layers=95, hidden=22_016, vocab=102_400),
        source="DeepSeek LLM, arXiv:2401.02954, table 2; released config.json",
    ),
    "Llama 3 405B": Published(
        config=GPTConfig.preset("405B", context=131_072),
        source="Grattafiori et al. 2024, arXiv:2407.21783, table 3 and section 3.4.2",
    ),
    "DeepSeek-V2": Published(
        config=GPTConfig(**V2, **DEEPSEEK, experts=ExpertSettings(**V2_EXPERTS)),
        source="DeepSeek-V2, arXiv:2405.04434, section 3.1.2; released config.json",
    ),
}

SPARSE = {  # with experts
    "DeepSeek-V2": MODELS["DeepSeek-V2"],
    "DeepSeek-V3": Published(
        config=GPTConfig(**V3, **DEEPSEEK, experts=ExpertSettings(**V3_EXPERTS)),
        source="DeepSeek-V3, arXiv:2412.19437, section 4.2; released config.json",
    ),
    "Mixtral 8x7B": Published(
        config=GPTConfig(**MIXTRAL, tied=False, experts=ExpertSettings(count=8, chosen=2)),
        source="Jiang et al. 2024, arXiv:2401.04088, table 1; released config.json",
    ),
    "Qwen3-235B-A22B": Published(
        config=GPTConfig(**QWEN3, experts=ExpertSettings(count=128, chosen=8, hidden=1536)),
        source="Qwen3, arXiv:2505.09388, table 2; released config.json",
        unlike=94 * 2 * 128,  # norms of queries and keys
    ),
}
