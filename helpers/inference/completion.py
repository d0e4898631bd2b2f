"""Complete a text in a notebook cell, token by token, with a model of bytes."""

import codecs
import html
import time
from collections.abc import Iterator, Sequence

from helpers.data.tokens import BYTES
from helpers.inference.generate import stream
from helpers.inference.sampling import Sampling
from helpers.models.gpt import GPT
from helpers.runtime.screen import in_jupyter

DRAW_SECONDS = 0.05  # between two updates of the cell's output
LIVELY = Sampling(temperature=0.8, top_p=0.95)


def complete(
    model: GPT,
    text: str,
    new_tokens: int = 400,
    *,
    sampling: Sampling = LIVELY,
    seed: int = 0,
    stop: Sequence[int] = (BYTES.separator,),
) -> str:
    """Continue the text and show it as it grows, in the cell or in the terminal.

    To interrupt it, interrupt the kernel: what is there stays, and is returned.

    Args:
        text: what is there already. "" begins a document.
        new_tokens: bytes to generate at most.
        sampling, seed: as of `generate`.
        stop: bytes that end the text; by default the end of a document.

    Returns:
        The new text alone.

    Raises:
        ValueError: the model's tokens are not bytes; or a character of the text is NUL.
    """
    screen = Cell(text) if in_jupyter() else Terminal(text)
    new, note = "", ""
    try:
        for piece in pieces(model, text, new_tokens, sampling=sampling, seed=seed, stop=stop):
            new += piece
            screen.show(new)
    except KeyboardInterrupt:
        note = f"interrupted after {len(new)} characters"
    screen.end(new, note)
    return new


def pieces(model: GPT, text: str, new_tokens: int, **options) -> Iterator[str]:
    """Yield the new text as it comes. A character of several bytes comes with its last byte."""
    if model.config.vocab != BYTES.vocab:
        raise ValueError(
            f"the model has {model.config.vocab} tokens, and cannot complete text: bytes are "
            f"{BYTES.vocab} tokens"
        )
    start = BYTES.encode(text).tolist() or [BYTES.separator]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in endless(model, start, new_tokens, **options):
        if token not in options["stop"]:
            yield decoder.decode(bytes([token]))
    yield decoder.decode(b"", final=True)


def endless(
    model: GPT, start: Sequence[int], new_tokens: int, *, seed: int, stop, **options
) -> Iterator[int]:
    """Yield new tokens, also beyond the context.

    Whenever the context is full, the model reads the last half of it again, as a new prompt.
    """
    context, sequence, made = model.config.context, list(start), 0
    while made < new_tokens:
        if len(sequence) > context:
            # at other places, and with other random numbers
            sequence, seed = sequence[-max(context // 2, 1) :], seed + 1
        for token in stream(model, sequence, new_tokens - made, seed=seed, stop=stop, **options):
            sequence, made = [*sequence, token], made + 1
            yield token
            if token in stop:
                return


class Terminal:
    """Print what is new."""

    def __init__(self, text: str):
        self.printed = 0
        print(text, end="", flush=True)

    def show(self, new: str):
        print(new[self.printed :], end="", flush=True)
        self.printed = len(new)

    def end(self, new: str, note: str):
        self.show(new)
        print(f"\n[{note}]" if note else "")


class Cell:
    """Draw the text in the cell's output, and draw it again as it grows."""

    def __init__(self, text: str):
        from IPython.display import display

        self.text, self.drawn = text, time.monotonic()
        self.handle = display(self.drawing("", ""), raw=True, display_id=True)

    def show(self, new: str):
        if time.monotonic() - self.drawn >= DRAW_SECONDS:
            self.handle.update(self.drawing(new, ""), raw=True)
            self.drawn = time.monotonic()

    def end(self, new: str, note: str):
        self.handle.update(self.drawing(new, note), raw=True)

    def drawing(self, new: str, note: str) -> dict[str, str]:
        """The given text in bold, then the new text; by MIME type."""
        style = "white-space:pre-wrap;border-left:4px solid #8888;padding:.3em .8em"
        given, grown = html.escape(self.text), html.escape(new)
        said = f"\n<i>[{html.escape(note)}]</i>" if note else ""
        return {
            "text/html": f"<pre style='{style}'><b>{given}</b>{grown}{said}</pre>",
            "text/plain": self.text + new + (f"\n[{note}]" if note else ""),
        }
