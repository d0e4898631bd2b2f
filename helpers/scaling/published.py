"""Published models: parameters and tokens, as their papers print them."""

from dataclasses import dataclass

from helpers.scaling.law import FLOPS


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model's parameters, its training tokens, and the source of both."""

    name: str
    params: float
    tokens: float
    source: str

    @property
    def compute(self) -> float:
        """6 N D, in FLOPs."""
        return FLOPS * self.params * self.tokens

    @property
    def tokens_per_param(self) -> float:
        return self.tokens / self.params


_GPT3 = "Brown et al. 2020, arXiv:2005.14165, table 2.1"
_GOPHER = "Rae et al. 2021, arXiv:2112.11446, section 3"
_CHINCHILLA = "Hoffmann et al. 2022, arXiv:2203.15556, section 4"
_LLAMA1 = "Touvron et al. 2023, arXiv:2302.13971, table 2"
_LLAMA2 = "Touvron et al. 2023, arXiv:2307.09288, table 1"
_LLAMA3 = "Grattafiori et al. 2024, arXiv:2407.21783, sections 1 and 3"

MODELS = tuple(
    Published(name=name, params=params, tokens=tokens, source=source)
    for name, params, tokens, source in (
        ("GPT-3", 175e9, 300e9, _GPT3),
        ("Gopher", 280e9, 300e9, _GOPHER),
        ("Chinchilla", 70e9, 1.4e12, _CHINCHILLA),
        ("Llama 1 7B", 6.7e9, 1e12, _LLAMA1),
        ("Llama 1 65B", 65.2e9, 1.4e12, _LLAMA1),
        ("Llama 2 7B", 7e9, 2e12, _LLAMA2),
        ("Llama 2 70B", 70e9, 2e12, _LLAMA2),
        ("Llama 3 405B", 405e9, 15.6e12, _LLAMA3),
    )
)
