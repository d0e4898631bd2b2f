"""transformers' Mamba, Mamba-2 and Bamba, with their parameters under our names.

Their models compute norms, decays, states and logits in float32, whatever the dtype of the model.
`lifted` makes them use float64 there. The names of ours follow the papers' symbols; theirs join
several matrices in one.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)
from transformers.models.bamba import modeling_bamba
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

from helpers.models.config import GPTConfig

MODULES = (modeling_mamba, modeling_mamba2, modeling_bamba)


class _Double:
    """The module torch, in which float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def lifted(dtype: torch.dtype = torch.float64):
    """In float64: let their code cast to float64, wherever it says float32. Else: nothing."""
    if dtype is not torch.float64:
        yield
        return
    patches = [mock.patch.object(module, "torch", _Double()) for module in MODULES]
    patches.append(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def mamba_of(config: GPTConfig) -> MambaForCausalLM:
    sizes = config.mamba
    return MambaForCausalLM(
        MambaConfig(
            vocab_size=config.vocab,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            state_size=sizes.state,
            expand=sizes.expand,
            conv_kernel=sizes.convolution,
            time_step_rank=sizes.rank_of(config.width),
            layer_norm_epsilon=config.norm_eps,
            use_bias=config.bias,
            tie_word_embeddings=config.tied,
        )
    )


def mamba2_of(config: GPTConfig, chunk: int = 8) -> Mamba2ForCausalLM:
    sizes = config.mamba2
    return Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=config.vocab,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            state_size=sizes.state,
            expand=sizes.expand,
            conv_kernel=sizes.convolution,
            num_heads=sizes.heads(config.width),
            head_dim=sizes.head,
            n_groups=sizes.groups,
            chunk_size=chunk,
            layer_norm_epsilon=config.norm_eps,
            use_bias=config.bias,
            tie_word_embeddings=config.tied,
        )
    )


def bamba_of(config: GPTConfig, chunk: int = 8) -> BambaForCausalLM:
    sizes = config.mamba2
    return BambaForCausalLM(
        BambaConfig(
            vocab_size=config.vocab,
            hidden_size=config.width,
            intermediate_size=config.inner,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_heads,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
            tie_word_embeddings=config.tied,
            attn_layer_indices=[n for n, kind in enumerate(config.mixers) if kind == "attention"],
            mamba_d_state=sizes.state,
            mamba_expand=sizes.expand,
            mamba_d_conv=sizes.convolution,
            mamba_n_heads=sizes.heads(config.width),
            mamba_d_head=sizes.head,
            mamba_n_groups=sizes.groups,
            mamba_chunk_size=chunk,
            attn_implementation="sdpa",
        )
    )


ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
MLP = {"mlp.gate": "gate_proj", "mlp.up": "up_proj", "mlp.down": "down_proj"}


def from_mixer(kind: str, theirs: dict, config: GPTConfig, gradients: bool) -> dict:
    """A mixer's parameters, or their gradients, under our names."""
    if kind == "attention":
        names = [(n, other, end) for n, other in ATTENTION.items() for end in ends(config)]
        return {f"{n}.{end}": theirs[f"{other}.{end}"] for n, other, end in names}
    ours = {"A_log": theirs["A_log"], "skip": theirs["D"]}
    whole = {f"conv1d.{end}": theirs[f"conv1d.{end}"] for end in ("weight", "bias")}
    whole["conv1d.weight"] = whole["conv1d.weight"].squeeze(1)  # (channels, 1, k)
    if kind == "mamba":
        sizes = config.mamba
        split = [sizes.channels(config.width)] * 2
        rows = dict(zip(("inner", "gate"), split, strict=True))
        ours |= {f"convolution.{end}": whole[f"conv1d.{end}"] for end in ("weight", "bias")}
        ours |= {f"delta.{end}": theirs[f"dt_proj.{end}"] for end in ("weight", "bias")}
        narrow = [sizes.rank_of(config.width), sizes.state, sizes.state]
        three = theirs["x_proj.weight"].split(narrow)
        ours |= {f"{n}.weight": t for n, t in zip(("rank", "B", "C"), three, strict=True)}
    else:
        sizes = config.mamba2
        channels, shared = sizes.channels(config.width), sizes.groups * sizes.state
        rows = {"gate": channels, "inner": channels, "B": shared, "C": shared}
        rows["delta"] = sizes.heads(config.width)
        names = ("convolution", "convolution_B", "convolution_C")
        for end in ("weight", "bias"):
            three = whole[f"conv1d.{end}"].split([channels, shared, shared])
            ours |= {f"{n}.{end}": t for n, t in zip(names, three, strict=True)}
        ours["gated_norm.weight"] = theirs["norm.weight"]
    for end in ends(config):
        cut = theirs[f"in_proj.{end}"].split(list(rows.values()))
        ours |= {f"{name}.{end}": t for name, t in zip(rows, cut, strict=True)}
        ours[f"out.{end}"] = theirs[f"out_proj.{end}"]
    if kind == "mamba2":  # their step's bias is a parameter of its own, added to the matrix's
        other = 0 if gradients else ours.get("delta.bias", 0)
        ours["delta.bias"] = theirs["dt_bias"] + other
    return ours


def ends(config: GPTConfig) -> tuple[str, ...]:
    return ("weight", "bias") if config.bias else ("weight",)


def under(prefix: str, state: dict) -> dict:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def renamed(state: dict, config: GPTConfig, gradients: bool = False) -> dict:
    """All of their parameters, or gradients, under our names, split where theirs are joined."""
    bamba = "model.embed_tokens.weight" in state
    top, mixer, norm = ("model", "", "input_layernorm") if bamba else ("backbone", "mixer", "norm")
    names = {"embedding": "embed_tokens" if bamba else "embeddings"}
    names["norm"] = "final_layernorm" if bamba else "norm_f"
    ours = {f"{name}.weight": state[f"{top}.{other}.weight"] for name, other in names.items()}
    ours["head.weight"] = ours["embedding.weight"] if config.tied else state["lm_head.weight"]
    for layer, kind in enumerate(config.mixers):
        here, there = f"blocks.{layer}.", under(f"{top}.layers.{layer}.", state)
        ours[f"{here}{kind}_norm.weight"] = there[f"{norm}.weight"]
        if bamba:
            mixer = "self_attn" if kind == "attention" else "mamba"
            ours[f"{here}mlp_norm.weight"] = there["pre_ff_layernorm.weight"]
            for name, other in MLP.items():
                ours[f"{here}{name}.weight"] = there[f"feed_forward.{other}.weight"]
        found = from_mixer(kind, under(f"{mixer}.", there), config, gradients)
        ours |= {f"{here}{kind}.{name}": tensor for name, tensor in found.items()}
    return ours


def pair(make, config: GPTConfig, dtype: torch.dtype, **options):
    """Their model with random parameters, and ours with the same."""
    with lifted(dtype):
        theirs = make(config, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            # decays exp(Δ A) from 0.2 to 0.9: a state that neither vanishes nor stays
            shift = 0 if parameter.dim() > 1 or name.endswith(("A_log", "bias")) else 1
            parameter.copy_(noise + shift)
    theirs = theirs.to(dtype).eval()
    ours = config.build(dtype)
    ours.load_state_dict(renamed(theirs.state_dict(), config))  # strict: none is missing
    return theirs, ours
