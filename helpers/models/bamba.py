"""Bamba: Mamba-2 blocks, a few attention blocks, and an MLP in each (Bamba-9B, 2024).

Attention recalls any earlier token, but its keys and values grow with the text. A Mamba-2 block
keeps a state of fixed size. Bamba has 3 attention blocks among 32.

Sources: "Bamba: Inference-Efficient Hybrid Mamba2 Model", huggingface.co/blog/bamba, the table of
the architecture; github.com/foundation-model-stack/fms-fsdp, `config_utils.py`, "mamba_9.8b", for
the places of the attention blocks and the rotary width of 64 of a head's 128.
"""

from collections.abc import Iterable

from helpers.models.gpt import GPTConfig

BAMBA_9B = {
    "vocab": 128_256,
    "context": 4096,
    "width": 4096,
    "hidden": 14_336,
    "heads": 32,
    "kv_heads": 8,
    "tied": False,
}


def bamba(layers: int = 32, attention: Iterable[int] = (9, 18, 27), **changes) -> GPTConfig:
    """Make the configuration of a Bamba. The defaults are Bamba-9B as published.

    Args:
        layers: the number of blocks.
        attention: the numbers of the blocks with attention; the others have Mamba-2.
        changes: of other fields of the `GPTConfig`.

    Raises:
        ValueError: no block has one of these numbers, or as for `GPTConfig`.
    """
    attention = set(attention)
    if strange := attention - set(range(layers)):
        raise ValueError(
            f"no block has the number {min(strange)}: {layers} blocks have 0 to {layers - 1}"
        )
    mixer = tuple("attention" if n in attention else "mamba2" for n in range(layers))
    return GPTConfig(**{"rotary_share": 0.5, **BAMBA_9B, **changes}, layers=layers, mixer=mixer)
