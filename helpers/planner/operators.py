"""The operators of a GPT's or a Bamba's layers, for the intra-operator plan.

The residual sum is an operator with two inputs. Activation functions belong to their matrices.
"""

from collections.abc import Iterable

from helpers.planner.strategies import Operator


def operators(
    config, sequences: int, tokens: int, blocks: Iterable[int], *, first=True, last=True
) -> list[Operator]:
    """List the operators of some blocks, in order; with the model's ends where asked.

    Args:
        config: a `GPTConfig` of attention and Mamba-2 blocks.
        sequences, tokens: of a micro-batch.
        first, last: whether the embedding and the head belong to it. Without the embedding, the
            first operator stands for what the stage before sends.

    Raises:
        ValueError: another mixer, or experts.
    """
    if config.experts is not None:
        raise ValueError("no operators are known for experts: plan a model without them")
    size = {"sequences": sequences, "tokens": tokens}
    width = {"width_in": config.width, "width_out": config.width}
    found = []

    def add(name, kind, inputs=None, **more):
        inputs = (len(found) - 1,) if inputs is None else inputs
        found.append(Operator(name=name, kind=kind, inputs=inputs, **size | width | more))
        return len(found) - 1

    def linear(name, fan_in, fan_out, inside=None, outside=None, inputs=None, kind="linear"):
        bias = ((fan_out, "v"),) if config.bias and kind == "linear" else ()
        return add(
            name, kind, inputs, width_in=fan_in, width_out=fan_out, units_in=inside,
            units_out=outside, parameters=((fan_in * fan_out, "w"), *bias),
            flops=2.0 * sequences * tokens * fan_in * fan_out,
        )  # fmt: skip

    def norm(name, inputs=None):
        scales = 2 if config.norm == "layer" and config.bias else 1
        return add(name, "norm", inputs, parameters=((config.width, "v"),) * scales)

    if first:
        here = add("embedding", "embedding", (), width_in=config.vocab,
                   parameters=((config.vocab * config.width, "w"),))  # fmt: skip
    else:
        here = add("input", "pointwise", ())
    for block in blocks:
        kind = config.mixer_of(block)
        norm(f"{block}.norm1", (here,))
        if kind == "attention":
            heads, kv, used = config.heads, config.key_heads, config.heads * config.head_width
            made = used + 2 * kv * config.head_width
            flops = 4.0 * sequences * tokens**2 * used
        elif kind == "mamba2":
            settings = config.mamba2
            heads = kv = settings.heads(config.width)
            used = settings.channels(config.width)
            made = 2 * used + 2 * settings.groups * settings.state + heads
            squares = min(settings.chunk, tokens) * (settings.groups * settings.state + used)
            flops = 2.0 * sequences * tokens * (squares + 2 * used * settings.state)
        else:
            raise ValueError(f"no operators are known for the mixer {kind!r}")
        linear(f"{block}.in", config.width, made, outside=kv)
        add(f"{block}.mixer", "heads", width_in=made, width_out=used, units_in=kv, units_out=kv,
            flops=flops)  # fmt: skip
        out = linear(f"{block}.out", used, config.width, inside=heads)
        here = add(f"{block}.sum1", "pointwise", (here, out))
        if config.inner:
            norm(f"{block}.norm2")
            matrices = 2 if config.mlp == "swiglu" else 1
            linear(f"{block}.up", config.width, matrices * config.inner, outside=config.inner)
            down = linear(f"{block}.down", config.inner, config.width)
            here = add(f"{block}.sum2", "pointwise", (here, down))
    if last:
        norm("norm", (here,))
        tied = {"tied": 0} if config.tied and first else {}
        add("head", "head", width_out=config.vocab, flops=2.0 * sequences * tokens * config.width
            * config.vocab, parameters=((config.vocab * config.width, "w"),), **tied)  # fmt: skip
    return found
