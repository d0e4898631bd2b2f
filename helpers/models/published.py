"""Published language models whose caches the course compares."""

from dataclasses import dataclass

from helpers.models.counts import parameters
from helpers.models.gpt import GPTConfig
from helpers.models.settings import Latent


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published model.

    Attributes:
        config: its shape. For a model with experts, the MLP is that of its first, dense block.
        parameters: all of them, experts included.
        source: where the shape is from.
    """

    config: GPTConfig
    parameters: int
    source: str


def _dense(config: GPTConfig, source: str) -> Published:
    return Published(config=config, parameters=parameters(config).total, source=source)


MODELS = {
    "Llama 2 7B": _dense(
        GPTConfig.preset("7B"), "Touvron et al. 2023, arXiv:2307.09288; released config.json"
    ),
    "Llama 2 70B": _dense(
        GPTConfig.preset("70B"), "Touvron et al. 2023, arXiv:2307.09288; released config.json"
    ),
    "DeepSeek 67B": _dense(
        GPTConfig.preset("70B", layers=95, hidden=22_016, vocab=102_400),
        "DeepSeek LLM, arXiv:2401.02954, table 2; released config.json",
    ),
    "Llama 3 405B": _dense(
        GPTConfig.preset("405B", context=131_072),
        "Grattafiori et al. 2024, arXiv:2407.21783, table 3 and section 3.4.2",
    ),
    "DeepSeek-V2": Published(
        config=GPTConfig(
            vocab=102_400,
            context=131_072,
            width=5120,
            layers=60,
            heads=128,
            hidden=12_288,
            tied=False,
            norm_eps=1e-6,
            mixer="latent",
            latent=Latent(kv_rank=512, query_rank=1536, nope=128, rope=64, value=128),
        ),
        parameters=235_741_434_880,
        source="DeepSeek-V2, arXiv:2405.04434, section 3.1.2; released config.json",
    ),
}
