"""transformers' models, with their parameters under our names.

Llama, Mixtral and GPT-2; DeepSeek-V2 and V3, V3 also with experts; Mamba, Mamba-2 and Bamba.
Their models compute norms, angles, decays, states and logits in float32, whatever the dtype of the
model. `lifted` makes them use float64 there. Theirs join several matrices in one.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers.models.bamba import modeling_bamba
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.mixtral import modeling_mixtral

from helpers.models.gpt import GPT, GPTConfig

MODULES = (modeling_bamba, modeling_deepseek_v2, modeling_deepseek_v3, modeling_llama)
MODULES += (modeling_mamba, modeling_mamba2, modeling_mixtral)
CACHES_LATENTS = Version(transformers.__version__) >= Version("5.23")
REASON = "transformers before 5.23 may cache the keys and values of DeepSeek instead of latents"


class _Double:
    """The module torch, in which float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def lifted(dtype: torch.dtype = torch.float64):
    """In float64: let their code cast to float64, wherever it says float32. Else: nothing."""
    with ExitStack() as stack:
        for module in MODULES if dtype is torch.float64 else ():
            stack.enter_context(mock.patch.object(module, "torch", _Double()))
        if dtype is torch.float64:
            double = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)
            stack.enter_context(double)
        yield


def peer_of(config: GPTConfig, version: int = 2, chunk: int = 8) -> nn.Module:
    """Make transformers' model of this shape, in evaluation mode.

    Args:
        version: of DeepSeek: 2 or 3.
        chunk: of Mamba-2's scan.
    """
    kinds, c = set(config.mixers), config
    shared = {"vocab_size": c.vocab, "hidden_size": c.width, "num_hidden_layers": c.layers}
    shared["tie_word_embeddings"] = c.tied
    llama = shared | {
        "intermediate_size": c.inner,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rotary_base},
        "attn_implementation": "sdpa",
        "experts_implementation": "eager",  # the default has no float64
    }
    if c.norm == "layer":
        kind = "GPT2"
        given = {
            "vocab_size": c.vocab,
            "n_positions": c.context,
            "n_embd": c.width,
            "n_layer": c.layers,
            "n_head": c.heads,
            "n_inner": c.inner,
            "layer_norm_epsilon": c.norm_eps,
            "tie_word_embeddings": c.tied,
            "attn_implementation": "sdpa",
        }
    elif kinds == {"attention"}:
        kind, given = "Llama" if c.experts is None else "Mixtral", llama
        if c.experts is not None:
            given |= {"num_local_experts": c.experts.count, "sliding_window": None}
            given |= {"num_experts_per_tok": c.experts.chosen}
    elif kinds == {"latent"}:
        w, kind = c.latent_widths, f"DeepseekV{version}"
        given = llama | {
            "num_key_value_heads": c.heads,
            "first_k_dense_replace": c.layers,
            "kv_lora_rank": w.kv_rank,
            "q_lora_rank": w.query_rank,
            "qk_nope_head_dim": w.nope,
            "qk_rope_head_dim": w.rope,
            "v_head_dim": w.value,
            "attention_bias": c.bias,
        }
        if c.experts is not None:
            given |= {
                "first_k_dense_replace": c.experts.after,
                "n_routed_experts": c.experts.count,
                "num_experts_per_tok": c.experts.chosen,
                "n_shared_experts": c.experts.shared,
                "moe_intermediate_size": c.experts.hidden,
                "n_group": c.experts.groups,
                "topk_group": c.experts.limit,
                "norm_topk_prob": c.experts.normalized,
                "routed_scaling_factor": c.experts.scale,
            }
    elif kinds == {"mamba2", "attention"}:
        w, kind = c.mamba2, "Bamba"
        given = llama | {
            "attn_layer_indices": [n for n, kind in enumerate(c.mixers) if kind == "attention"],
            "mamba_d_state": w.state,
            "mamba_expand": w.expand,
            "mamba_d_conv": w.convolution,
            "mamba_n_heads": w.heads(c.width),
            "mamba_d_head": w.head,
            "mamba_n_groups": w.groups,
            "mamba_chunk_size": chunk,
        }
    else:
        w, kind = getattr(c, c.mixer), c.mixer.title()
        given = shared | {"layer_norm_epsilon": c.norm_eps, "use_bias": c.bias}
        given |= {"state_size": w.state, "expand": w.expand, "conv_kernel": w.convolution}
        if kind == "Mamba":
            given["time_step_rank"] = w.rank_of(c.width)
        else:
            given |= {"num_heads": w.heads(c.width), "head_dim": w.head, "n_groups": w.groups}
            given["chunk_size"] = chunk
    made = getattr(transformers, f"{kind}Config")(**given)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(made).eval()


ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
MLP = {"mlp.gate": "gate_proj", "mlp.up": "up_proj", "mlp.down": "down_proj"}
GPT2 = {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}


def ends(config: GPTConfig) -> tuple[str, ...]:
    return ("weight", "bias") if config.bias else ("weight",)


def under(prefix: str, state: dict) -> dict:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def joined(names, theirs: torch.Tensor, sizes, end: str) -> dict:
    """Cut one of their tensors into several of ours."""
    return {f"{n}.{end}": t for n, t in zip(names, theirs.split(list(sizes)), strict=True)}


def halves(rows: torch.Tensor, rope: int, heads: int = 1) -> torch.Tensor:
    """Reorder each head's last rows: they rotate pairs (2 i, 2 i + 1), we (i, i + r/2)."""
    rows = rows.unflatten(0, (heads, -1))
    plain, turned = rows[:, :-rope], rows[:, -rope:]
    turned = torch.cat([turned[:, 0::2], turned[:, 1::2]], 1)
    return torch.cat([plain, turned], 1).flatten(0, 1)


def from_gpt2(state: dict, config: GPTConfig) -> dict:
    """Their Conv1D transposes matrices, and joins query, key and value."""
    state = {n.removeprefix("transformer."): t for n, t in state.items()}
    ours = {"embedding.weight": state["wte.weight"], "positions.weight": state["wpe.weight"]}
    ours["head.weight"] = state["wte.weight" if config.tied else "lm_head.weight"]
    for end in ("weight", "bias"):
        ours[f"norm.{end}"] = state[f"ln_f.{end}"]
        for layer in range(config.layers):
            here, there = f"blocks.{layer}.", under(f"h.{layer}.", state)
            ours[f"{here}attention_norm.{end}"] = there[f"ln_1.{end}"]
            ours[f"{here}mlp_norm.{end}"] = there[f"ln_2.{end}"]
            for name, other in GPT2.items():
                tensor = there[f"{other}.{end}"]
                ours[f"{here}{name}.{end}"] = tensor.mT if end == "weight" else tensor
            three = there[f"attn.c_attn.{end}"]
            three = (three.mT if end == "weight" else three).chunk(3)
            for name, part in zip(("query", "key", "value"), three, strict=True):
                ours[f"{here}attention.{name}.{end}"] = part
    return ours


def from_latent(theirs: dict, config: GPTConfig) -> dict:
    """Joined matrices are cut; rotated rows are reordered."""
    w, heads, ours = config.latent_widths, config.heads, {}
    ours["latent_norm.weight"] = theirs["kv_a_layernorm.weight"]
    if w.query_rank is None:
        query = theirs["q_proj.weight"]
    else:
        query, ours["query_norm.weight"] = theirs["q_b_proj.weight"], theirs["q_a_layernorm.weight"]
    ours["query.weight"] = halves(query, w.rope, heads)
    up = theirs["kv_b_proj.weight"].unflatten(0, (heads, -1))
    for name, rows in (("key", up[:, : w.nope]), ("value", up[:, w.nope :])):
        ours[f"{name}.weight"] = rows.flatten(0, 1)
    for end in ends(config):
        ours[f"out.{end}"] = theirs[f"o_proj.{end}"]
        if w.query_rank is not None:
            ours[f"query_down.{end}"] = theirs[f"q_a_proj.{end}"]
        both = theirs[f"kv_a_proj_with_mqa.{end}"]
        ours[f"down.{end}"] = both[: w.kv_rank]
        ours[f"rotary_key.{end}"] = halves(both[w.kv_rank :], w.rope)
    return ours


def from_experts(theirs: dict) -> dict:
    """Gate and up are joined; the bias of the choice is no parameter."""
    ours = {"router.weight": theirs["gate.weight"], "experts.down": theirs["experts.down_proj"]}
    ours["experts.gate"], ours["experts.up"] = theirs["experts.gate_up_proj"].chunk(2, dim=1)
    if "gate.e_score_correction_bias" in theirs:
        ours["router.balance"] = theirs["gate.e_score_correction_bias"]
    for name, other in MLP.items():
        if f"shared_experts.{other}.weight" in theirs:
            ours[name.replace("mlp", "shared") + ".weight"] = theirs[
                f"shared_experts.{other}.weight"
            ]
    return ours


def from_mixer(kind: str, theirs: dict, config: GPTConfig, gradients: bool) -> dict:
    """A mixer's parameters, or their gradients, under our names."""
    if kind == "latent":
        return from_latent(theirs, config)
    if kind == "attention":
        names = [(n, other, end) for n, other in ATTENTION.items() for end in ends(config)]
        return {f"{n}.{end}": theirs[f"{other}.{end}"] for n, other, end in names}
    sizes, ours = getattr(config, kind), {"A_log": theirs["A_log"], "skip": theirs["D"]}
    channels, whole = sizes.channels(config.width), {"bias": theirs["conv1d.bias"]}
    whole["weight"] = theirs["conv1d.weight"].squeeze(1)  # (channels, 1, k)
    if kind == "mamba":
        rows = dict.fromkeys(("inner", "gate"), channels)
        for end in ("weight", "bias"):
            ours |= {f"convolution.{end}": whole[end], f"delta.{end}": theirs[f"dt_proj.{end}"]}
        narrow = [sizes.rank_of(config.width), sizes.state, sizes.state]
        ours |= joined(("rank", "B", "C"), theirs["x_proj.weight"], narrow, "weight")
    else:
        shared = sizes.groups * sizes.state
        rows = {"gate": channels, "inner": channels, "B": shared, "C": shared}
        rows["delta"] = sizes.heads(config.width)
        names = ("convolution", "convolution_B", "convolution_C")
        for end in ("weight", "bias"):
            ours |= joined(names, whole[end], [channels, shared, shared], end)
        ours["gated_norm.weight"] = theirs["norm.weight"]
    for end in ends(config):
        ours |= joined(rows, theirs[f"in_proj.{end}"], rows.values(), end)
        ours[f"out.{end}"] = theirs[f"out_proj.{end}"]
    if kind == "mamba2":  # their step's bias is a parameter of its own, added to the matrix's
        ours["delta.bias"] = theirs["dt_bias"] + (0 if gradients else ours.get("delta.bias", 0))
    return ours


def renamed(state: dict, config: GPTConfig, gradients: bool = False) -> dict:
    """All of their parameters, or gradients, under our names, split where theirs are joined."""
    if config.norm == "layer":
        return from_gpt2(state, config)
    if "model.embed_tokens.weight" in state:
        bamba = "model.final_layernorm.weight" in state
        top, embedding, norm = "model", "embed_tokens", "final_layernorm" if bamba else "norm"
        mlp_norm, mlp = ("pre_ff_layernorm", "feed_forward") if bamba else (None, "mlp")
        mixer_norm, mlp_norm = "input_layernorm", mlp_norm or "post_attention_layernorm"
    else:
        top, embedding, norm, mixer_norm, mlp = "backbone", "embeddings", "norm_f", "norm", None
    ours = {"embedding.weight": state[f"{top}.{embedding}.weight"]}
    ours["norm.weight"] = state[f"{top}.{norm}.weight"]
    ours["head.weight"] = ours["embedding.weight"] if config.tied else state["lm_head.weight"]
    for layer, kind in enumerate(config.mixers):
        here, there = f"blocks.{layer}.", under(f"{top}.layers.{layer}.", state)
        ours[f"{here}{kind}_norm.weight"] = there[f"{mixer_norm}.weight"]
        mixer = "mixer" if mlp is None else "mamba" if kind == "mamba2" else "self_attn"
        if mlp is not None:
            ours[f"{here}mlp_norm.weight"] = there[f"{mlp_norm}.weight"]
            if config.routed(layer):
                found = from_experts(under(f"{mlp}.", there))
                ours |= {f"{here}mlp.{name}": tensor for name, tensor in found.items()}
            for name, other in () if config.routed(layer) else MLP.items():
                ours[f"{here}{name}.weight"] = there[f"{mlp}.{other}.weight"]
        found = from_mixer(kind, under(f"{mixer}.", there), config, gradients)
        ours |= {f"{here}{kind}.{name}": tensor for name, tensor in found.items()}
    return ours


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Make every parameter random, so that tests see each of them.

    Scales are near 1. Decays exp(Δ A) are from 0.2 to 0.9: a state neither vanishes nor stays.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
            scale = parameter.dim() == 1 and not name.endswith(("A_log", "bias"))
            parameter.copy_(noise + scale)
    return model


def pair(config: GPTConfig, dtype: torch.dtype = torch.float64, **options):
    """Their model with random parameters, and ours with the same."""
    with lifted(dtype):
        theirs = randomised(peer_of(config, **options)).to(dtype)
    for name, buffer in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(-1, 1, len(buffer))[torch.arange(len(buffer)) * 3 % 7])
    ours = config.build(dtype).eval()
    ours.load_state_dict(renamed(theirs.state_dict(), config))  # strict: none is missing
    return theirs, ours


def copy_of(model: GPT) -> nn.Module:
    """Make transformers' Llama or GPT-2 with the weights of ours, in its dtype.

    Call it under `lifted` if its norms and angles should be in float64.
    """
    dtype = next(model.parameters()).dtype
    with lifted(dtype):
        theirs = peer_of(model.config).to(dtype)
    with torch.no_grad():
        ours = model.state_dict()
        for name, view in renamed(theirs.state_dict(), model.config).items():
            view.copy_(ours[name])
    return theirs
