"""Time greedy decoding: ours beside transformers with its two caches, and over the context."""

from functools import partial

import numpy as np
import torch

from helpers.inference.decoder.compiled import Compiled
from helpers.inference.decoder.fused import Fused
from helpers.models.caches.preallocated import Preallocated
from helpers.models.counts import bytes_per_token, parameters
from helpers.models.gpt import GPT, GPTConfig, build, kept_by
from tests.bench.compare import beside, duration, in_turn, median, one_thread, timed
from tests.bench.report import Report, goal_of, share_of

NAME = "decoding"
LLAMA = GPTConfig(vocab=256, context=4352, width=256, layers=8, heads=8, hidden=688)
PROMPT = 16  # tokens
BATCHES = {1: 9, 8: 7, 32: 5}  # sequences: rounds
NEW_TOKENS = (64, 256, 512)
GOALS = {(1, 64): 0.6, (1, 256): 0.5, (1, 512): 0.45, (8, 64): 0.45, (8, 512): 0.35}
OURS, OPERATORS, DYNAMIC, STATIC = "ours", "ours, operators", "dynamic cache", "static cache"
CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
STEPS = 24  # timed at each context
CONTEXT_ROUNDS = 7


def measure(quick: bool = False) -> Report:
    with one_thread():
        model = varied(LLAMA)
        theirs = transformers_model(model)
        rows = []
        for sequences, rounds in BATCHES.items():
            for new_tokens in (8,) if quick else NEW_TOKENS:
                rows += sized(model, theirs, sequences, new_tokens, 2 if quick else rounds)
        contexts = CONTEXTS[:3] if quick else CONTEXTS
        for sequences in (1, 8):
            rows += over_context(model, sequences, contexts, 2 if quick else CONTEXT_ROUNDS)
    return report(rows)


def varied(config: GPTConfig) -> GPT:
    """Make a model whose tokens vary. First values are so small that it repeats one token."""
    model = build(config, 0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for matrix in model.blocks.parameters():
            if matrix.ndim == 2:
                matrix.normal_(0, 1.5 * matrix.shape[1] ** -0.5, generator=generator)
    return model


def transformers_model(model: GPT):
    """The Llama of transformers with the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocab,
        hidden_size=c.width,
        intermediate_size=c.inner,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.key_heads,
        max_position_embeddings=c.context,
        rms_norm_eps=c.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rotary_base},
        tie_word_embeddings=c.tied,
        attn_implementation="sdpa",
    )
    theirs = LlamaForCausalLM(config).eval()
    own = model.state_dict()
    names = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "norm.weight"}
    names["lm_head.weight"] = "head.weight"
    inside = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        **{f"self_attn.{one[0]}_proj": f"attention.{one}" for one in ("query", "key", "value")},
        "self_attn.o_proj": "attention.out",
        **{f"mlp.{one}_proj": f"mlp.{one}" for one in ("gate", "up", "down")},
    }
    for layer in range(c.layers):
        for name, ours in inside.items():
            names[f"model.layers.{layer}.{name}.weight"] = f"blocks.{layer}.{ours}.weight"
    theirs.load_state_dict({name: own[ours] for name, ours in names.items()}, strict=True)
    return theirs


def sized(model: GPT, theirs, sequences: int, new_tokens: int, rounds: int) -> list[dict]:
    """The rows of one size: prefill and greedy decoding, all tokens equal."""
    from transformers import StaticCache

    generator = torch.Generator().manual_seed(sequences)
    prompts = torch.randint(model.config.vocab, (sequences, PROMPT), generator=generator)
    capacity = PROMPT + new_tokens
    compiled, operators = (partial(decode_ours, kind(model)) for kind in (Compiled, Fused))
    static = StaticCache(config=theirs.config, max_cache_len=capacity)
    calls = {
        OURS: partial(compiled, kept_by(model), prompts, new_tokens),
        OPERATORS: partial(operators, kept_by(model), prompts, new_tokens),
        DYNAMIC: partial(decode_theirs, theirs, prompts, new_tokens),
        STATIC: partial(decode_theirs, theirs, prompts, new_tokens, static),
    }
    tokens = [call() for call in calls.values()]  # the first calls also allocate
    for name, found in zip(calls, tokens, strict=True):
        if found != tokens[0]:
            raise AssertionError(
                f"{name} decodes other tokens than {OURS}, so their times do not compare. Did "
                "rounding decide between two equally likely tokens? Then take other prompts."
            )
    times = in_turn({name: timed(call) for name, call in calls.items()}, rounds)
    return rows_of(times, sequences, new_tokens)


@torch.inference_mode()
def decode_ours(forward, kept, prompts: torch.Tensor, new_tokens: int) -> list[list[int]]:
    """Decode greedily, with a cache of exactly the size that is needed."""
    length = prompts.shape[1] + new_tokens - 1
    cache = Preallocated(kept, len(prompts), length, device=prompts.device)
    x, found = prompts, []
    for _ in range(new_tokens):
        x = forward(x, cache=cache)[:, -1].argmax(-1, keepdim=True)
        found.append(x)
    return torch.cat(found, 1).tolist()


@torch.inference_mode()
def decode_theirs(theirs, prompts: torch.Tensor, new_tokens: int, static=None) -> list[list[int]]:
    """Decode greedily with transformers. A loop of our own costs less than its `generate`."""
    from transformers import DynamicCache

    if static is not None:
        static.reset()
    cache = DynamicCache(config=theirs.config) if static is None else static
    x, found = prompts, []
    for _ in range(new_tokens):
        logits = theirs(x, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        x = logits[:, -1].argmax(-1, keepdim=True)
        found.append(x)
    return torch.cat(found, 1).tolist()


def rows_of(times, sequences: int, new_tokens: int) -> list[dict]:
    """One row per contender. Its ratio is its time over that of transformers' faster cache."""
    peer = min((DYNAMIC, STATIC), key=lambda name: median(times[name]))
    rows = []
    for name, samples in times.items():
        rows.append(
            {
                "kind": "beside",
                "batch": sequences,
                "tokens": new_tokens,
                "contender": name,
                "peer": peer,
                "median": median(samples),
                **beside(samples, times[peer]),
                "goal": GOALS.get((sequences, new_tokens), "") if name == OURS else "",
                "bytes": "",
                "weights": "",
            }
        )
    return rows


@torch.inference_mode()
def over_context(model: GPT, sequences: int, contexts, rounds: int) -> list[dict]:
    """The time of a step after C tokens, and the share of its bytes that are weights."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(config.vocab, (sequences, max(contexts)), generator=generator)
    decoder, token = Compiled(model), prompts[:, :1]
    cache = Preallocated(kept_by(model), sequences, max(contexts) + STEPS)

    def steps() -> float:
        read = cache.lengths
        seconds = timed(lambda: decoder(token, cache=cache), STEPS)()
        cache.rewind(read)
        return seconds

    rows, samples = [], {}
    for context in contexts:
        cache.rewind([0] * sequences)
        decoder(prompts[:, :context], cache=cache)
        steps()  # the first steps also make room
        samples[context] = [steps() for _ in range(rounds)]
    for context in contexts:
        table, one = config.vocab * config.width, bytes_per_token(config, torch.float32)
        weights = 4 * (parameters(config).blocks + table + sequences * config.width)
        every = weights + sequences * one * (context + STEPS // 2 + 2)  # read, and the new row
        rows.append(
            {
                "kind": "context",
                "batch": sequences,
                "tokens": context,
                "contender": OURS,
                "peer": "",
                "median": median(samples[context]),
                "ratio": "",
                "low": min(samples[context]),
                "high": max(samples[context]),
                "goal": "",
                "bytes": every,
                "weights": weights / every,
            }
        )
    return rows


def line(contexts, seconds) -> tuple[float, float, float]:
    """Fit seconds = a + b context, by least relative squares. Returns a, b and the largest error.

    The error is relative to the measured time.
    """
    x, y = np.asarray(contexts, float), np.asarray(seconds, float)
    b, a = np.polyfit(x, y, 1, w=1 / y)
    return float(a), float(b), float(np.max(np.abs(a + b * x - y) / y))


def report(rows) -> Report:
    table = [["batch", "new tokens", OURS, OPERATORS, DYNAMIC, STATIC]]
    table[0] += ["ours over the faster", "goal", "operators over it"]
    besides = [row for row in rows if row["kind"] == "beside"]
    for size in dict.fromkeys((row["batch"], row["tokens"]) for row in besides):
        by_name = {r["contender"]: r for r in besides if (r["batch"], r["tokens"]) == size}
        ours = by_name[OURS]
        table.append(
            [
                *map(str, size),
                *(duration(by_name[name]["median"]) for name in (OURS, OPERATORS, DYNAMIC, STATIC)),
                share_of(ours),
                goal_of(ours),
                share_of(by_name[OPERATORS]),
            ]
        )
    notes = (
        f"Greedy decoding after prompts of {PROMPT} tokens, prefill included: a Llama of "
        f"{LLAMA.layers} layers, width {LLAMA.width}, {LLAMA.heads} heads and inner width "
        f"{LLAMA.inner}, in float32, on one thread. All have the same weights and decode the same "
        "tokens. Ours: a step is one function in C, compiled for this CPU; or PyTorch's operators "
        "on the same fused weights. The others are transformers with its dynamic and its static "
        "cache, in a loop without the extras of its `generate`. Contenders run in turn. A ratio "
        "is the median over pairs, with a 95 % bootstrap interval.\n\n" + context_notes(rows)
    )
    return Report(NAME, table, notes, rows)


def context_notes(rows) -> str:
    """Sentences about the time of a step over the context, one per batch."""
    sentences = []
    contexts = [row for row in rows if row["kind"] == "context"]
    for batch in dict.fromkeys(row["batch"] for row in contexts):
        own = [row for row in contexts if row["batch"] == batch]
        a, b, error = line([r["tokens"] for r in own], [r["median"] for r in own])
        first, last = own[0], own[-1]
        sentences.append(
            f"One step of batch {batch} takes {duration(first['median'])} after {first['tokens']} "
            f"tokens and {duration(last['median'])} after {last['tokens']:,}. A line, "
            f"{1e3 * a:.2f} ms and {1e9 * b:.0f} ns for each token of context, is at most "
            f"{error:.0%} off. The part that does not grow with the context is "
            f"{a / first['median']:.0%} of the time after {first['tokens']} tokens, and "
            f"{a / last['median']:.0%} after {last['tokens']:,}. Of the bytes that a step reads "
            f"and writes, {first['weights']:.0%} and {last['weights']:.0%} are weights."
        )
    return " ".join(sentences)
