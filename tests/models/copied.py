"""Our GPT and transformers' Llama and GPT-2, with each other's weights."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from helpers.models.gpt import GPT


def copy_of(model: GPT) -> GPT2LMHeadModel | LlamaForCausalLM:
    """Make transformers' model with the weights of ours, in its dtype and evaluation mode.

    A model with RMSNorm becomes a Llama, else a GPT-2. In float64, all arithmetic is in float64.
    """
    config = model.config
    llama = config.norm == "rms"
    theirs = (llama_of if llama else gpt2_of)(config)
    dtype = next(model.parameters()).dtype
    theirs = in_float64(theirs, config) if dtype is torch.float64 else theirs.to(dtype)
    rename = from_llama if llama else from_gpt2
    with torch.no_grad():
        ours = model.state_dict()
        for name, view in rename(theirs.state_dict(), config).items():
            view.copy_(ours[name])
    return theirs.eval()


def llama_of(config):
    return LlamaForCausalLM(
        LlamaConfig(
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
            attn_implementation="sdpa",
        )
    )


LLAMA = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def from_llama(state, config):
    """Their parameters under our names, without transposing or reordering."""
    ours = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    ours["head.weight"] = ours["embedding.weight"] if config.tied else "lm_head.weight"
    for layer in range(config.layers):
        for name, other in LLAMA.items():
            ours[f"blocks.{layer}.{name}.weight"] = f"model.layers.{layer}.{other}.weight"
    return {name: state[other] for name, other in ours.items()}


def gpt2_of(config):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab,
            n_positions=config.context,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.inner,
            layer_norm_epsilon=config.norm_eps,
            tie_word_embeddings=config.tied,
            attn_implementation="sdpa",
        )
    )


GPT2 = {
    "attention_norm": "ln_1",
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def turned(parameter):
    return parameter.mT if parameter.dim() == 2 else parameter


def from_gpt2(state, config):
    """Their Conv1D transposes matrices, and joins query, key and value."""
    state = {name.removeprefix("transformer."): t for name, t in state.items()}
    ours = {"embedding.weight": state["wte.weight"], "positions.weight": state["wpe.weight"]}
    ours["head.weight"] = state["wte.weight" if config.tied else "lm_head.weight"]
    for end in ("weight", "bias"):
        ours[f"norm.{end}"] = state[f"ln_f.{end}"]
        for layer in range(config.layers):
            here, there = f"blocks.{layer}", f"h.{layer}"
            for name, other in GPT2.items():
                ours[f"{here}.{name}.{end}"] = turned(state[f"{there}.{other}.{end}"])
            three = turned(state[f"{there}.attn.c_attn.{end}"]).chunk(3)
            for name, part in zip(("query", "key", "value"), three, strict=True):
                ours[f"{here}.attention.{name}.{end}"] = part
    return ours


class Angles(nn.Module):
    """Compute their table of angles in float64."""

    def __init__(self, config):
        super().__init__()
        half = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
        self.frequencies = config.rotary_base**-half

    def forward(self, x, position_ids):
        angles = (position_ids[..., None] * self.frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def in_float64(theirs, config):
    """Use float64 throughout their model: Llama's norms and angles use float32 by design."""
    if isinstance(theirs, LlamaForCausalLM):
        theirs.model.rotary_emb = Angles(config)
        for module in list(theirs.modules()):
            for name, child in module.named_children():
                if type(child) is LlamaRMSNorm:
                    norm = nn.RMSNorm(config.width, eps=config.norm_eps)
                    norm.load_state_dict(child.state_dict())
                    setattr(module, name, norm)
    return theirs.to(torch.float64)
