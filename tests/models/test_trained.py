"""The trained models: small files, plain models, good predictions of Python that they never saw."""

import numpy as np
import pytest
import torch

from helpers.data.blocks import pack
from helpers.data.source import held_out
from helpers.models import trained
from helpers.models.gpt import GPTConfig, build

every_name = pytest.mark.parametrize("name", trained.NAMES)
# nats a byte on held-out text, measured with Python 3.11, and a little for other releases
BOUND = {"python-300k": 1.45, "python-draft": 1.85}


def test_the_files_are_small_and_all_are_named():
    files = sorted(trained.FOLDER.glob("*.npz"))
    assert sorted(file.stem for file in files) == sorted(trained.NAMES)
    assert sum(file.stat().st_size for file in files) < 1_500_000


@every_name
def test_a_model_is_ready_to_generate(name):
    model = trained.load(name)
    assert not model.training
    assert model.config.vocab == 256
    assert model.config.context == 256
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.isfinite().all() for p in model.parameters())
    assert {p.device.type for p in trained.load(name, device="meta").parameters()} == {"meta"}
    double = trained.load(name, torch.float64)
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    for one, other in zip(model.parameters(), double.parameters(), strict=True):
        assert torch.equal(one.double(), other)


@every_name
@torch.no_grad()
def test_held_out_python_is_predicted(name):
    model = trained.load(name)
    [batch] = held_out(pack("python", 256, split="validation"), 32, 32)
    total, count = model.loss(batch)
    loss = float(total / count)
    assert loss < BOUND[name]
    # the file says so too, of more text
    assert trained.about(name)["validation loss"] == pytest.approx(loss, abs=0.2)


@every_name
def test_a_file_says_what_it_was_trained_on(name):
    about = trained.about(name)
    assert about["corpus"]["name"] == "python"
    assert about["corpus"]["split"] == "train"
    assert about["tokens"] == about["steps"] * 8 * 256
    with np.load(trained.FOLDER / f"{name}.npz", allow_pickle=False) as file:
        numbers = [file[key] for key in file.files if key.startswith("parameter ")]
    assert {array.dtype for array in numbers} == {np.dtype(np.float16)}


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig(vocab=7, width=8, heads=2, layers=1),
        GPTConfig(
            vocab=7,
            width=8,
            heads=2,
            tied=False,
            norm="layer",
            bias=True,
            positions="learned",
            mlp="gelu",
            mixer=("attention", "attention"),
            norm_eps=1e-3,
        ),
    ],
    ids=["llama", "gpt2"],
)
@torch.no_grad()
def test_a_written_model_is_read_again(tmp_path, config):
    model = build(config, 3).train()
    trained.write(tmp_path / "some.npz", model, {"steps": 5})
    again = trained.read(tmp_path / "some.npz")
    assert again.config == config
    assert not again.training
    elsewhere = trained.read(tmp_path / "some.npz", torch.bfloat16, "meta")
    assert {(p.dtype, p.device.type) for p in elsewhere.parameters()} == {(torch.bfloat16, "meta")}
    ours, theirs = dict(model.named_parameters()), dict(again.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert torch.equal(parameter.half().float(), theirs[name])
    tokens = torch.arange(7)[None]
    torch.testing.assert_close(again(tokens), model.eval()(tokens), rtol=0, atol=1e-2)


def test_a_file_is_never_executed(tmp_path):
    """An array of objects would be a pickle."""
    np.savez(tmp_path / "bad.npz", config=np.array([{}], dtype=object), about=np.array("{}"))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        trained.read(tmp_path / "bad.npz")


def test_an_unknown_name():
    for function in (trained.load, trained.about):
        with pytest.raises(ValueError, match="no trained model 'rust'; choose one of python-300k"):
            function("rust")
