"""The configuration of a GPT: see `gpt.GPTConfig`, and `shape.GPTShape` for its values."""

from helpers.models.gpt import GPTConfig
from helpers.models.shape import CHOICES, PRESETS

__all__ = ["CHOICES", "PRESETS", "GPTConfig"]
