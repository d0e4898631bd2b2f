"""transformers' DeepSeek-V2 and V3 with dense MLPs, in float64; their weights in our model."""

from collections.abc import Mapping

import torch
import transformers
from packaging.version import Version
from torch import nn

from helpers.models.config import GPTConfig

CACHES_LATENTS = Version(transformers.__version__) >= Version("5.23")
REASON = "transformers before 5.23 may cache the keys and values of DeepSeek instead of latents"
MODULES = {
    "latent_norm": "input_layernorm",
    "latent.latent_norm": "self_attn.kv_a_layernorm",
    "latent.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def deepseek_of(config: GPTConfig, version: int) -> nn.Module:
    """Make transformers' model of this shape. Every block has a dense MLP; no experts."""
    theirs = {2: "DeepseekV2", 3: "DeepseekV3"}[version]
    w = config.latent_widths
    made = getattr(transformers, f"{theirs}Config")(
        vocab_size=config.vocab,
        hidden_size=config.width,
        intermediate_size=config.inner,
        num_hidden_layers=config.layers,
        first_k_dense_replace=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        kv_lora_rank=w.kv_rank,
        q_lora_rank=w.query_rank,
        qk_nope_head_dim=w.nope,
        qk_rope_head_dim=w.rope,
        v_head_dim=w.value,
        max_position_embeddings=config.context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
        tie_word_embeddings=config.tied,
        attention_bias=config.bias,
        attn_implementation="sdpa",
    )
    return getattr(transformers, f"{theirs}ForCausalLM")(made).eval()


def halves(rows: torch.Tensor, rope: int, heads: int = 1) -> torch.Tensor:
    """Reorder each head's last rows: they rotate pairs (2 i, 2 i + 1), we (i, i + r/2)."""
    rows = rows.unflatten(0, (heads, -1))
    plain, turned = rows[:, :-rope], rows[:, -rope:]
    turned = torch.cat([turned[:, 0::2], turned[:, 1::2]], 1)
    return torch.cat([plain, turned], 1).flatten(0, 1)


def from_deepseek(state: Mapping[str, torch.Tensor], config: GPTConfig) -> dict[str, torch.Tensor]:
    """Their parameters under our names. Joined matrices are cut; rotated rows are reordered."""
    ours = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    ours["head.weight"] = ours["embedding.weight"] if config.tied else "lm_head.weight"
    ours = {name: state[other] for name, other in ours.items()}
    w, heads = config.latent_widths, config.heads
    for layer in range(config.layers):
        here, there = f"blocks.{layer}", f"model.layers.{layer}"
        for name, other in MODULES.items():
            for leaf in ("weight", "bias"):
                if f"{there}.{other}.{leaf}" in state:
                    ours[f"{here}.{name}.{leaf}"] = state[f"{there}.{other}.{leaf}"]
        at = f"{there}.self_attn"
        if w.query_rank is None:
            query = state[f"{at}.q_proj.weight"]
        else:
            query = state[f"{at}.q_b_proj.weight"]
            ours[f"{here}.latent.query_norm.weight"] = state[f"{at}.q_a_layernorm.weight"]
        ours[f"{here}.latent.query.weight"] = halves(query, w.rope, heads)
        up = state[f"{at}.kv_b_proj.weight"].unflatten(0, (heads, -1))
        for name, rows in (("key", up[:, : w.nope]), ("value", up[:, w.nope :])):
            ours[f"{here}.latent.{name}.weight"] = rows.flatten(0, 1)
        for leaf in ("weight", "bias"):
            if f"{at}.q_a_proj.{leaf}" in state:
                ours[f"{here}.latent.query_down.{leaf}"] = state[f"{at}.q_a_proj.{leaf}"]
            if f"{at}.kv_a_proj_with_mqa.{leaf}" in state:
                joined = state[f"{at}.kv_a_proj_with_mqa.{leaf}"]
                ours[f"{here}.latent.down.{leaf}"] = joined[: w.kv_rank]
                ours[f"{here}.latent.rotary_key.{leaf}"] = halves(joined[w.kv_rank :], w.rope)
    return ours


class Angles(nn.Module):
    """Compute their rotary angles in float64: V2 has complex numbers, V3 cosine and sine."""

    def __init__(self, config: GPTConfig, version: int):
        super().__init__()
        half = torch.arange(0, config.rotary_width, 2, dtype=torch.float64) / config.rotary_width
        self.frequencies, self.version = config.rotary_base**-half, version

    def forward(self, x, position_ids):
        angles = position_ids[..., None] * self.frequencies
        if self.version == 2:
            return torch.polar(torch.ones_like(angles), angles)
        angles = angles.repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def rotate_in_float64(xq, xk, freqs_cis):
    """As their `apply_rotary_emb`, without its cast to float32."""
    turned = []
    for x in (xq, xk):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned.append(torch.view_as_real(pairs * freqs_cis.unsqueeze(1)).flatten(3))
    return turned


def in_float64(theirs: nn.Module, config: GPTConfig, version: int, monkeypatch) -> nn.Module:
    """Use float64 throughout their model: its norms and angles use float32 by design."""
    theirs.model.rotary_emb = Angles(config, version)
    if version == 2:
        name = type(theirs).__module__
        monkeypatch.setattr(f"{name}.apply_rotary_emb", rotate_in_float64)
    for module in list(theirs.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.numel(), eps=child.variance_epsilon)
                norm.load_state_dict(child.state_dict())
                setattr(module, name, norm)
    return theirs.double()
