"""Byte models that this course trained on the Python in every Python (licence PSF-2.0).

    model = load("python-300k")

Each file has the parameters in float16, under the names of the plain model; the configuration; and
what the model was trained on. `python -m helpers.training.python_models NAME` makes it again.
"""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from helpers.models.gpt import GPT, GPTConfig

FOLDER = Path(__file__).parent
NAMES = ("python-300k", "python-draft")


def load(name: str, dtype: torch.dtype = torch.float32, device="cpu") -> GPT:
    """Load a trained model, ready to generate: it is in evaluation mode.

    Args:
        name: "python-300k"; or "python-draft", small and quick, whose guesses speculative decoding
            checks with the first.

    Raises:
        ValueError: no model has that name.
    """
    return read(_path(name), dtype, device)


def about(name: str) -> dict:
    """Say what a model was trained on: the corpus, the steps, the tokens, the losses in nats.

    Raises:
        ValueError: no model has that name.
    """
    with np.load(_path(name), allow_pickle=False) as file:
        return json.loads(str(file["about"]))


def write(path: Path | str, model: GPT, about: dict):
    """Write a model's parameters in float16, its configuration, and what it was trained on."""
    given = {
        field.name: getattr(model.config, field.name)
        for field in fields(GPTConfig)
        if getattr(model.config, field.name) != field.default
    }
    arrays = {
        f"parameter {name}": parameter.detach().cpu().numpy().astype(np.float16)
        for name, parameter in model.named_parameters()
    }
    config, about = json.dumps(given), json.dumps(about)
    np.savez_compressed(path, config=np.array(config), about=np.array(about), **arrays)


def read(path: Path | str, dtype: torch.dtype = torch.float32, device="cpu") -> GPT:
    """Read a model that `write` wrote. Nothing in the file is executed."""
    with np.load(path, allow_pickle=False) as file:
        given = json.loads(str(file["config"]))
        if isinstance(given.get("mixer"), list):  # JSON has no tuples
            given["mixer"] = tuple(given["mixer"])
        model = GPT(GPTConfig(**given), dtype, device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.from_numpy(file[f"parameter {name}"]))
    return model.eval()


def _path(name: str) -> Path:
    if name not in NAMES:
        raise ValueError(f"no trained model {name!r}; choose one of {', '.join(NAMES)}")
    return FOLDER / f"{name}.npz"
