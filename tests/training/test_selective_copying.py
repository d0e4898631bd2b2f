"""The task of selective copying, the mixer that cannot select, and the committed run."""

import math

import pytest
import torch

from helpers.models.caches.preallocated import Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import kept_by
from helpers.models.initialization import build
from helpers.models.settings import MambaSettings
from helpers.training import selective_copying
from helpers.training.schedule import Cosine
from helpers.training.selective_copying import (
    KINDS,
    RATES,
    Fixed,
    Task,
    learn,
    longer_run,
    main,
    make,
    right,
    with_more_noise,
)


@pytest.mark.parametrize("sizes", [(16, 4, 32), (1, 1, 1), (3, 5, 5), (2, 1, 9)])
def test_the_markers_ask_for_the_letters_in_their_order(sizes):
    task = Task(letters=sizes[0], copied=sizes[1], places=sizes[2])
    tokens, targets = task.batch(50, torch.Generator().manual_seed(1))
    assert tokens.shape == targets.shape == (50, task.length)
    assert {task.noise, task.marker} == {task.letters, task.letters + 1}
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        shown, asked = row[: task.places], row[task.places :]
        assert asked == [task.marker] * task.copied
        letters = [token for token in shown if token != task.noise]
        assert wanted == [-100] * task.places + letters
        assert all(0 <= letter < task.letters for letter in letters)


@pytest.mark.parametrize("copied", [0, 5])
def test_letters_need_room(copied):
    with pytest.raises(ValueError, match=f"{copied} letters to copy do not fit into 4 places"):
        Task(copied=copied, places=4)


def fixed(width=6, state=5):
    config = GPTConfig(
        vocab=7, context=16, width=width, heads=1, layers=1, mixer="mamba", mlp="none",
        positions="none", mamba=MambaSettings(state=state),
    )  # fmt: skip
    mamba = build(config, 3, torch.float64).blocks["0"].mamba
    torch.manual_seed(0)
    mixer = Fixed(mamba)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer


@pytest.mark.parametrize("tokens", [1, 2, 11])
def test_the_convolution_is_the_recurrence(tokens):
    mixer = fixed()
    x = torch.randn(2, tokens, 6, dtype=torch.float64)
    u, gate = mixer.inner(x), mixer.gate(x)
    u = torch.nn.functional.silu(mixer.convolution(u)[0])
    delta = torch.nn.functional.softplus(mixer.steps)
    h, outputs = torch.zeros(2, *mixer.B.shape, dtype=torch.float64), []
    for t in range(tokens):
        decay = torch.exp(-delta[:, None] * mixer.A_log.exp())
        h = decay * h + delta[:, None] * mixer.B * u[:, t, :, None]
        outputs.append((h * mixer.C).sum(-1) + mixer.skip * u[:, t])
    y = torch.stack(outputs, 1)
    wanted = mixer.out(y * torch.nn.functional.silu(gate))
    assert (mixer(x, None) - wanted).abs().max() < 1e-12


def test_every_parameter_of_the_fixed_mixer_learns():
    mixer = fixed()
    mixer(torch.randn(2, 4, 6, dtype=torch.float64), None).square().sum().backward()
    names = {name for name, _ in mixer.named_parameters()}
    assert names == {
        "inner.weight", "gate.weight", "convolution.weight", "convolution.bias", "A_log", "skip",
        "out.weight", "steps", "B", "C",
    }  # fmt: skip
    assert all(p.grad.abs().sum() > 0 for p in mixer.parameters())


def test_the_fixed_mixer_has_no_cache():
    model = make("fixed", Task())
    with pytest.raises(NotImplementedError, match="give it whole sequences"):
        model(torch.zeros(1, 3, dtype=torch.long), cache=Preallocated(kept_by(model), 1, 8))


def test_the_three_have_about_the_same_size_and_no_future():
    sizes, task = [], Task()
    tokens = task.batch(2, torch.Generator().manual_seed(0))[0]
    other = tokens.clone()
    other[:, 20:] = 0
    for kind in KINDS:
        model = make(kind, task)
        sizes.append(sum(p.numel() for p in model.parameters()))
        assert (model(tokens) - model(other))[:, :20].abs().max() < 1e-5
    assert max(sizes) < 1.1 * min(sizes)
    with pytest.raises(ValueError, match="no kind 'lti'; choose one of attention, fixed"):
        make("lti", task)


def test_the_share_of_letters_that_are_right():
    class Knows:
        """Copies all letters but the last."""

        def __call__(self, tokens):
            self.seen = tokens
            logits = torch.zeros(*tokens.shape, 12)
            for b, row in enumerate(tokens.tolist()):
                letters = [t for t in row[: task.places] if t != task.noise]
                for i, letter in enumerate(letters[:-1]):
                    logits[b, task.places + i, letter] = 1
                logits[b, -1, 11] = 1
            return logits

    task = Task(letters=10, copied=5, places=9)
    model = Knows()
    assert right(model, task) == 4 / 5
    for seed in range(3):  # of the trainings: their sequences are others
        trained, _ = task.batch(len(model.seen), torch.Generator().manual_seed(seed))
        assert not torch.equal(model.seen, trained)


def test_a_training_learns_a_small_task():
    task = Task(letters=2, copied=1, places=3)
    for kind in KINDS:
        curve = list(learn(make(kind, task, width=16), task, 60, lr=0.01, every=25))
        assert [step for step, _ in curve] == [0, 25, 50, 60]
        assert curve[-1][1] > 0.9, kind


def test_a_step_follows_its_own_gradient_alone():
    """The same two steps by hand: new sequences, no gradient of the step before, clipped."""
    task = Task(letters=2, copied=1, places=3)
    model, twin = (make("attention", task, width=16, seed=3) for _ in range(2))
    assert [step for step, _ in learn(model, task, 2, batch=4, lr=0.01, seed=5)] == [0, 2]
    drawn = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(twin.parameters(), betas=(0.9, 0.98))
    for step in range(2):
        optimizer.param_groups[0]["lr"] = Cosine(peak=0.01, steps=2, warmup=2, final=0.05)(step)
        tokens, targets = task.batch(4, drawn)
        logits = twin(tokens)[:, -1]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets[:, -1]).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


def test_the_command_writes_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(selective_copying, "COMMITTED", tmp_path / "run.csv")
    small = Task(letters=2, copied=1, places=2)
    monkeypatch.setattr(selective_copying, "Task", lambda: small)
    main(["--to", str(tmp_path / "run.csv"), "--steps", "2", "--seeds", "2"])
    assert capsys.readouterr().out.count(" of the letters right") == 6
    runs = longer_run()
    assert list(runs) == list(KINDS)
    for curves in runs.values():
        assert [[step for step, _ in curve] for curve in curves] == [[0, 2], [0, 2]]
        assert all(0 <= share <= 1 for curve in curves for _, share in curve)
    noisier = with_more_noise()
    assert [list(found) for found in noisier.values()] == [[2, 4, 8]] * 3
    for kind, found in noisier.items():
        assert found[2] == [curve[-1][1] for curve in runs[kind]]
    model = make("selective", small, seed=1)
    assert [step for step, _ in learn(model, small, 2, lr=RATES["selective"], seed=1)] == [0, 2]
    for places, shares in noisier["selective"].items():
        noisy = Task(letters=2, copied=1, places=places)
        assert shares[1] == pytest.approx(right(model, noisy), abs=1e-4)


def test_the_committed_run_says_who_learns():
    runs = longer_run()
    last = {kind: [curve[-1][1] for curve in curves] for kind, curves in runs.items()}
    assert all(len(curves) == 3 for curves in runs.values())
    assert all(curve[-1][0] == 1200 for curves in runs.values() for curve in curves)
    assert min(last["selective"]) > 0.99
    assert min(last["attention"]) > 0.9
    assert max(last["fixed"]) < 0.9
    noisier = with_more_noise()
    assert all(len(shares) == 3 for rows in noisier.values() for shares in rows.values())
    noisiest = {kind: rows[128] for kind, rows in noisier.items()}
    assert min(noisiest["selective"]) > 0.95
    assert max(noisiest["fixed"] + noisiest["attention"]) < 0.4
    assert all(
        math.isclose(curve[0][1], 1 / 16, abs_tol=0.08) for c in runs.values() for curve in c
    )
