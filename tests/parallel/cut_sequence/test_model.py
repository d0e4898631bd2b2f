"""A whole model on a cut sequence: parts of any length, bytes, and what cannot be cut."""

import pytest
import torch

from helpers.comm.ledger import ledger
from helpers.comm.messages import Peers
from helpers.models.caches.preallocated import Growing
from helpers.models.config import GPTConfig
from helpers.models.convolution import Convolution
from helpers.models.gpt import build, kept_by
from helpers.models.settings import ExpertSettings, Mamba2Settings, MambaSettings
from helpers.parallel.cut_sequence.model import CutConvolution, cut_sequence, sum_counts
from helpers.plans.sequence_traffic import halo_bytes, scan_bytes
from helpers.runtime.failure import WorkerError
from helpers.runtime.launch import launch

pytestmark = pytest.mark.usefixtures("kept_ranks")
SIZES = {"vocab": 13, "context": 16, "layers": 2, "width": 8, "heads": 2, "positions": "none"}
MAMBA = MambaSettings(state=3)
MAMBA2 = Mamba2Settings(state=3, head=4, groups=2, chunk=4, convolution=3)


def config_of(mixer, **options):
    return GPTConfig(mixer=mixer, mamba=MAMBA, mamba2=MAMBA2, **{**SIZES, **options})


def tokens_of(length):
    return torch.randint(0, 13, (2, length), generator=torch.Generator().manual_seed(3))


def made(mixer, **options):
    return build(config_of(mixer, **options), seed=1, dtype=torch.float64)


def weighted(logits, start):
    places = torch.arange(start, start + logits.shape[1], dtype=torch.float64)
    return (logits.cos() * (1 + places)[:, None]).sum()


def on_ranks(worker, mixer, parts):
    model = cut_sequence(made(mixer), Peers())
    start = sum(parts[: worker.rank])
    with ledger() as log:
        logits = model(tokens_of(sum(parts))[:, start : start + parts[worker.rank]])
    weighted(logits, start).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {"logits": logits.detach(), "gradients": gradients, "sent": log.of("send").payload}


@pytest.mark.parametrize("parts", [[3, 6, 2], [3, 3, 3, 0]], ids=str)
def test_parts_of_any_length_give_the_gradients_of_one_process(parts):
    """Also parts that a batch would not be cut into; the last one may be empty."""
    mixer = ("mamba2", "mamba")
    runs, model = launch(on_ranks, len(parts), device="cpu", mixer=mixer, parts=parts), made(mixer)
    logits = model(tokens_of(sum(parts)))
    weighted(logits, 0).backward()
    found = torch.cat(runs.column("logits"), 1)
    torch.testing.assert_close(found, logits.detach(), rtol=0, atol=1e-12)
    for name, p in model.named_parameters():
        grads = [row["gradients"][name] for row in runs]
        total = sum(g for g in grads if g is not None)
        torch.testing.assert_close(total, p.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_the_bytes_are_those_of_the_formulas(kind):
    parts = [3, 4, 5]
    runs = launch(on_ranks, 3, device="cpu", mixer=(kind,) * 2, parts=parts)
    options = {"ranks": 3, "sequences": 2, "number_bytes": 8}
    decay, state = {"mamba": (48, 48), "mamba2": (4, 4 * 4 * 3)}[kind]
    channels = {"mamba": 16, "mamba2": 16 + 2 * 6}[kind]
    for rank, row in enumerate(runs):
        scan = scan_bytes(decay=decay, state=state, rank=rank, **options)
        tokens = {"mamba": 3, "mamba2": 2}[kind]  # of a convolution but its last
        halo = halo_bytes(tokens=tokens, channels=channels, rank=rank, **options)
        assert row["sent"] == 2 * (scan + halo)


def test_what_cannot_be_cut_is_refused():
    attention = made(("mamba", "attention"))
    with pytest.raises(ValueError, match="attention and positions"):
        cut_sequence(attention, None)
    with pytest.raises(ValueError, match=r"positions \(learned\)"):
        cut_sequence(made(("mamba",) * 2, positions="learned"), None)
    experts = ExpertSettings(count=2, chosen=1, normalized=False, capacity=1.0)
    with pytest.raises(ValueError, match="no capacity of experts: use capacity=None"):
        sum_counts(made(("attention",) * 2, experts=experts), [])


@pytest.mark.parametrize("given", [{"before": torch.zeros(1, 2, 3)}, {"counts": [4]}])
def test_a_cut_convolution_takes_nothing_of_a_cache(given):
    convolution = CutConvolution(Convolution(3, 3), None)
    with pytest.raises(ValueError, match="a cut sequence has no cache"):
        convolution(torch.zeros(1, 4, 3), **given)


def with_cache(worker):
    model = cut_sequence(made(("mamba",) * 2), Peers())
    return model(tokens_of(4), cache=Growing(kept_by(model), 2, torch.float64))


def test_a_cut_sequence_has_no_cache():
    with pytest.raises(WorkerError, match="a cut sequence has no cache"):
        launch(with_cache, 1, device="cpu")
