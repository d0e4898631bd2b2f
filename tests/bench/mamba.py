"""Time Mamba-2's forward, and decoding with both Mambas, beside transformers' PyTorch code."""

from functools import partial

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

from helpers.inference.decoder.compiled import Compiled
from helpers.models.caches.preallocated import Preallocated
from helpers.models.config import GPTConfig
from helpers.models.gpt import build, kept_by
from helpers.models.settings import Mamba2Settings
from tests.bench.compare import beside, duration, in_turn, median, one_thread, timed
from tests.bench.report import Report, goal_of, share_of

NAME = "mamba"
SIZES = {"vocab": 256, "context": 2048, "width": 256, "layers": 2}
BLOCKS = {"heads": 1, "positions": "none", "mlp": "none"}
LENGTH, SEQUENCES, ROUNDS = 2048, 2, 12
PROMPT, NEW, ROWS = 16, 32, 1  # of decoding
FORWARD = "Mamba-2, forward"
DECODING = {"mamba": "Mamba, decoding", "mamba2": "Mamba-2, decoding"}
GOALS = {FORWARD: 0.5, **dict.fromkeys(DECODING.values(), 0.4)}  # our time over the peer's, at most
OURS, PEER = "ours", "transformers"


def measure(quick: bool = False) -> Report:
    length, new, rounds = (LENGTH // 16, 4, 2) if quick else (LENGTH, NEW, ROUNDS)
    rows = []
    with one_thread():
        works = {FORWARD: forwards(length)}
        works |= {work: decodings(mixer, new) for mixer, work in DECODING.items()}
        for work, contenders in works.items():
            print(f"mamba: {work}", flush=True)
            rows.append(compared(work, contenders, rounds))
    return report(rows)


def config_of(mixer: str) -> GPTConfig:
    return GPTConfig(**SIZES, **BLOCKS, mixer=mixer, mamba2=Mamba2Settings(head=64, state=64))


def peer_of(config: GPTConfig) -> torch.nn.Module:
    """transformers' model of the same sizes."""
    shape = {"vocab_size": config.vocab, "hidden_size": config.width}
    shape |= {"num_hidden_layers": config.layers, "tie_word_embeddings": config.tied}
    if config.mixers[0] == "mamba":
        return MambaForCausalLM(MambaConfig(**shape, state_size=config.mamba.state)).eval()
    sizes = config.mamba2
    heads = {"num_heads": sizes.heads(config.width), "head_dim": sizes.head, "n_groups": 1}
    return Mamba2ForCausalLM(Mamba2Config(**shape, **heads, state_size=sizes.state)).eval()


def forwards(length: int) -> dict:
    """A forward of all tokens, without gradients."""
    config = config_of("mamba2")
    ours, theirs = build(config), peer_of(config)
    tokens = torch.randint(config.vocab, (SEQUENCES, length))
    return {PEER: lambda: theirs(tokens, use_cache=False).logits, OURS: lambda: ours(tokens)}


def decodings(mixer: str, new: int) -> dict:
    """Greedy tokens, one at a time, after a prompt; the prompt's time counts too."""
    config = config_of(mixer)
    ours, theirs = build(config), peer_of(config)
    prompt = torch.randint(config.vocab, (ROWS, PROMPT))
    mine = partial(own, Compiled(ours), kept_by(ours), prompt, new)
    return {PEER: partial(their_tokens, theirs, prompt, new), OURS: mine}


def own(forward, kept, tokens: torch.Tensor, new: int) -> torch.Tensor:
    cache, found = Preallocated(kept, len(tokens), tokens.shape[1] + new), []
    while len(found) < new:
        tokens = forward(tokens, cache=cache)[:, -1:].argmax(-1)
        found.append(tokens)
    return torch.cat(found, 1)


def their_tokens(model, tokens: torch.Tensor, new: int) -> torch.Tensor:
    """The plain loop: `generate` does more than decode."""
    cache, found = None, []
    while len(found) < new:
        made = model(tokens, cache_params=cache, use_cache=True)
        cache, tokens = made.cache_params, made.logits[:, -1:].argmax(-1)
        found.append(tokens)
    return torch.cat(found, 1)


def compared(work: str, contenders: dict, rounds: int) -> dict:
    with torch.no_grad():
        for call in contenders.values():  # the first call allocates
            call()
        times = in_turn({name: timed(call) for name, call in contenders.items()}, rounds)
    medians = {"ours": median(times[OURS]), "peer": median(times[PEER])}
    return {"work": work, **medians, **beside(times[OURS], times[PEER]), "goal": GOALS[work]}


def report(rows) -> Report:
    table = [["", "ours", "transformers", "ours over theirs", "goal"]]
    for r in rows:
        times = (duration(r[key]) for key in ("ours", "peer"))
        table.append([r["work"], *times, share_of(r), goal_of(r)])
    notes = (
        f"Float32, one thread, width {SIZES['width']}, {SIZES['layers']} blocks, the same sizes on "
        f"both sides. Forward: {SEQUENCES} sequences of {LENGTH:,} tokens, with the logits, "
        f"without gradients. Decoding: {NEW} greedy tokens of {ROWS} sequence after {PROMPT}, with "
        "the state; our step is one function in C. transformers runs its PyTorch code: its kernels "
        "need a GPU. Contenders run in turn. A ratio is the median over pairs, with a 95 % "
        "bootstrap interval."
    )
    return Report(NAME, table, notes, rows)
