"""The configuration of a GPT as plain data, and presets from 100 thousand to a trillion parameters.

`gpt.GPTConfig` adds the model that it builds.
"""

from dataclasses import dataclass
from typing import Self

from helpers.models.settings import (
    MAMBA,
    MAMBA2,
    ExpertSettings,
    Latent,
    Mamba2Settings,
    MambaSettings,
    check_sizes,
)

CHOICES = {
    "norm": ("rms", "layer"),
    "positions": ("rotary", "learned", "none"),
    "mixer": ("attention", "latent", "mamba", "mamba2"),
    "mlp": ("swiglu", "gelu", "none"),
    "attention": ("sdpa", "explicit", "blockwise"),
    "recompute": ("none", "selective", "full"),
}


@dataclass(frozen=True, kw_only=True)
class GPTShape:
    """The configuration of a decoder-only Transformer. The defaults make a small Llama.

    Attributes:
        vocab: V, the number of different tokens; 256 for bytes.
        context: the maximum number of tokens in a sequence.
        width: D, numbers in a token's vector.
        layers: the number of blocks.
        heads: H, query heads.
        kv_heads: K, key/value heads, fewer for grouped queries; None: as many as `heads`.
        hidden: F, the MLP's inner width; None: 4 D, or 8/3 D for SwiGLU, which has three matrices.
        norm: "rms" (Zhang and Sennrich 2019) or "layer" (Ba et al. 2016).
        positions: "rotary" (Su et al. 2021), "learned" (added to the embeddings), or "none".
        mixer: the layer in which tokens see each other: one name for all blocks, or a tuple of one
            name per block. "attention"; "latent" for multi-head latent attention; "mamba" and
            "mamba2" for state space models.
        mlp: "swiglu" (Shazeer 2020), "gelu" (its tanh form), or "none": blocks of a mixer alone.
        tied: whether the head uses the embedding's matrix (Press and Wolf 2017).
        bias: whether linear layers and LayerNorms have a bias.
        attention: "sdpa", PyTorch's fused kernel; "explicit", which makes the matrix of scores; or
            "blockwise", which makes it block by block.
        dropout: the probability that training sets a number to zero. It applies to the embeddings
            and to the outputs of mixers and MLPs. It does not apply to attention probabilities,
            because the fused kernels draw random numbers of their own.
        recompute: the part that the backward recomputes instead of saving it: "none"; "selective",
            the attention's core (Korthikanti et al. 2022, section 5); "full", each block.
        rotary_base: the base of the rotary frequencies.
        rotary_share: the part of a head that the rotary angles turn, its first numbers; at most 1.
        norm_eps: added under the root of the norms.
        latent: the widths of mixer "latent", for which `kv_heads` means nothing; None: as
            `Latent.of` chooses them from the width of a head.
        mamba, mamba2: the sizes of these mixers.
        experts: makes the MLPs mixtures of experts, each a SwiGLU without biases; None: one MLP.
        head: d, the width of a head; None: width / heads.

    Raises:
        ValueError: a value is out of its range, or sizes do not divide each other.
    """

    vocab: int = 256
    context: int = 64
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    norm: str = "rms"
    positions: str = "rotary"
    mixer: str | tuple[str, ...] = "attention"
    mlp: str = "swiglu"
    tied: bool = True
    bias: bool = False
    attention: str = "sdpa"
    dropout: float = 0.0
    recompute: str = "none"
    rotary_base: float = 10_000.0
    rotary_share: float = 1.0
    norm_eps: float = 1e-5
    latent: Latent | None = None
    mamba: MambaSettings = MAMBA
    mamba2: Mamba2Settings = MAMBA2
    experts: ExpertSettings | None = None
    head: int | None = None

    def __post_init__(self):
        for name, choices in CHOICES.items():
            given = getattr(self, name)
            several = name == "mixer" and isinstance(given, tuple)
            for one in given if several else (given,):
                if one not in choices:
                    raise ValueError(f"{name} must be one of {', '.join(choices)}, not {one!r}")
        sizes = ("vocab", "context", "width", "layers", "heads", "kv_heads", "hidden", "head")
        check_sizes(self, sizes)
        if isinstance(self.mixer, tuple) and len(self.mixer) != self.layers:
            raise ValueError(f"{len(self.mixer)} mixers, but {self.layers} layers; name one each")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout!r}")
        if self.head is None and self.width % self.heads:
            raise ValueError(f"{self.heads} heads do not divide a width of {self.width}")
        if self.heads % self.key_heads:
            raise ValueError(f"{self.key_heads} kv_heads do not divide {self.heads} heads")
        turned = self.rotary_share * self.head_width
        if not 0 < self.rotary_share <= 1 or (self.rotary_share < 1 and turned % 2):
            raise ValueError(
                f"rotary_share must be above 0 and at most 1, and turn an even part of a head, but "
                f"{self.rotary_share!r} of {self.head_width} is {turned}"
            )
        if self.positions == "rotary" and any(width % 2 for width in self.rotary_widths):
            raise ValueError(
                f"rotary positions need an even head width (width / heads), not {self.head_width}"
            )
        if self.positions == "rotary" and len(widths := self.rotary_widths) > 1:
            raise ValueError(
                f"the mixers rotate widths of {' and '.join(map(str, sorted(widths)))}, but a "
                "model has one table of angles; make latent.rope the head width (width / heads)"
            )
        if "mamba2" in self.mixers:
            self.mamba2.heads(self.width)  # raises an error, if the sizes do not divide
        if self.experts is not None:
            if self.mlp != "swiglu" or self.bias:
                raise ValueError("experts are SwiGLUs without biases: use mlp='swiglu', bias=False")
            if self.experts.after >= self.layers:
                raise ValueError(
                    f"experts after {self.experts.after} blocks of {self.layers}: no block has any"
                )

    @property
    def key_heads(self) -> int:
        """K: the number of key/value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_width(self) -> int:
        """d: the width of a head: `head`, or D/H."""
        return self.width // self.heads if self.head is None else self.head

    @property
    def latent_widths(self) -> Latent:
        """The widths of mixer "latent": `latent`, or its default."""
        return Latent.of(self.head_width) if self.latent is None else self.latent

    @property
    def rotary_widths(self) -> set[int]:
        """How many numbers of a head each kind of mixer rotates by the place."""
        turned = {"latent": self.latent_widths.rope}
        turned["attention"] = int(self.rotary_share * self.head_width)
        return {turned[kind] for kind in self.mixers if kind in turned}

    @property
    def rotary_width(self) -> int:
        """How many numbers of a head rotary positions turn; 0 if no mixer has heads to turn."""
        return max(self.rotary_widths, default=0)

    @property
    def inner(self) -> int:
        """F: `hidden`, or its default (SwiGLU's rounded up to a multiple of 8); 0 without MLPs."""
        if self.mlp == "none":
            return 0
        if self.hidden is not None:
            return self.hidden
        return 4 * self.width if self.mlp == "gelu" else -(-8 * self.width // 24) * 8

    def routed(self, layer: int) -> bool:
        """Whether a block has a mixture of experts."""
        return self.experts is not None and layer >= self.experts.after

    def mixer_of(self, layer: int) -> str:
        """The kind of a block's mixer."""
        return self.mixer if isinstance(self.mixer, str) else self.mixer[layer]

    def length(self, tokens: int | None) -> int:
        """T, the number of tokens in a sequence: `tokens`, or for None the whole context.

        Raises:
            ValueError: it is not from 1 to the context.
        """
        length = self.context if tokens is None else tokens
        if not 1 <= length <= self.context:
            raise ValueError(f"{length} tokens; the context allows 1 to {self.context}")
        return length

    @property
    def mixers(self) -> tuple[str, ...]:
        """The kind of each block's mixer."""
        return tuple(self.mixer_of(layer) for layer in range(self.layers))

    @classmethod
    def preset(cls, name: str, **changes) -> Self:
        """Make the configuration of a preset: "100k" … "1T" parameters, embeddings included.

        Args:
            changes: replace the preset's values.

        Raises:
            ValueError: no such preset.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})


def _bytes(width, layers, heads):
    """The models that this course trains: tokens are bytes."""
    return {"vocab": 256, "context": 128, "width": width, "layers": layers, "heads": heads}


def _gpt(width, layers, heads, context=1024, vocab=50_257):
    """Like GPT-2 (Radford et al. 2019, table 2) and GPT-3 (Brown et al. 2020, table 2.1)."""
    shape = {"vocab": vocab, "context": context, "width": width, "layers": layers, "heads": heads}
    return shape | {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}


def _llama(width, layers, heads, hidden, kv_heads=None, vocab=32_000, context=4096):
    """Like Llama 2 (Touvron et al. 2023) and Llama 3 (Grattafiori et al. 2024, table 3)."""
    shape = {"vocab": vocab, "context": context, "width": width, "layers": layers, "heads": heads}
    return shape | {"hidden": hidden, "kv_heads": kv_heads, "tied": False}


PRESETS = {
    "100k": _bytes(48, 3, 4),
    "300k": _bytes(88, 3, 4),
    "1M": _bytes(128, 5, 4),
    "3M": _bytes(192, 7, 6),
    "10M": _bytes(320, 8, 8),
    "30M": _bytes(528, 9, 8),
    "124M": _gpt(768, 12, 12),  # GPT-2 small
    "355M": _gpt(1024, 24, 16),
    "774M": _gpt(1280, 36, 20),
    "1.5B": _gpt(1600, 48, 25),  # GPT-2 XL
    "7B": _llama(4096, 32, 32, 11_008),
    "8B": _llama(4096, 32, 32, 14_336, 8, 128_256, 8192),
    "13B": _llama(5120, 40, 40, 13_824),
    "70B": _llama(8192, 80, 64, 28_672, 8),
    "175B": _gpt(12_288, 96, 96, 2048),  # GPT-3
    "405B": _llama(16_384, 126, 128, 53_248, 8, 128_256, 8192),
    # the largest of Narayanan et al. 2021 (Megatron-LM), table 1
    "1T": _gpt(25_600, 128, 160, 2048, 51_200),
}
