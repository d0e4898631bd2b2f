"""Write text to a stream that may not know all letters, for example a terminal in ASCII."""

import sys
from typing import TextIO


def put(text: str, stream: TextIO | None = None):
    """Write `text` and flush; letters that the stream's encoding lacks become \\x or \\u."""
    stream = stream or sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def say(text: str):
    put(f"{text}\n")
