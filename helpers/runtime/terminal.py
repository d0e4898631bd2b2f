"""Write text to a stream that may not know all of its letters: a terminal that is ASCII, say."""

import sys
from typing import TextIO


def put(text: str, stream: TextIO | None = None):
    """Write `text` and show it at once; what the stream's encoding lacks becomes \\x or \\u."""
    stream = stream or sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def say(text: str):
    put(f"{text}\n")
