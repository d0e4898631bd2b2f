"""The table of grades: one row for each exercise of each submission, and their sum."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

FORMULA = "=+-@＝＋－＠"  # a spreadsheet takes a text that begins so for a formula
LISTED = 10  # files that are named
# A frame of a traceback, with its lines of code; and one of the submission (see `inside.define`).
FRAME = re.compile(r'^ *File "[^"]*", line \d+.*\n?(?:  (?:  |\[Previous line).*\n?)*', re.M)
THEIRS = re.compile(r'^ *File "<notebook \d+>", line (\d+), in (\S+)(?:\n {4}(.*))?', re.M)
TRACEBACK = "Traceback (most recent call last):\n"


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A row of the table.

    Attributes:
        submission: the notebook, below the folder.
        exercise: the name of the function; "?" if no exercise is known.
        passed: "yes", "no", or "not graded".
        finding: the first thing that is wrong, and a hint.
        seconds: that the check took, with the start of its sandbox.
    """

    submission: str
    exercise: str
    passed: str
    finding: str = ""
    seconds: float = 0.0

    def __str__(self):
        finding = one_line(their_line_first(self.finding))
        return f"{self.submission}  {self.exercise}: {self.passed}  {finding}".rstrip()


def clean(text: str) -> str:
    """Return a text that every terminal, file and spreadsheet can take, in one line."""
    text = text.encode("utf-8", "replace").decode()  # names of files may be no text at all
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"'{text}" if text[:1] in FORMULA and text else text


def their_line_first(finding: str) -> str:
    """Put the line of the student's function that failed first, in place of all frames."""
    frames = THEIRS.findall(finding)
    lines = FRAME.sub("", finding).replace(TRACEBACK, "").splitlines()
    # a traceback ends with the error that the first line names, too
    rest = "\n".join(x for k, x in enumerate(lines) if not any(y.endswith(x) for y in lines[:k]))
    if not frames:
        return rest
    number, name, code = frames[-1]
    return f"line {number} of {name}{f' ({code.strip()})' if code else ''}: {rest}"


def one_line(text: str, most: int = 300) -> str:
    text = clean(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write(table: Path, rows: Iterable[Grade]) -> Iterator[Grade]:
    """Write each row as it comes, and yield it.

    Raises:
        OSError: the file cannot be written.
    """
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Grade)])
        writer.writeheader()
        for row in rows:
            writer.writerow({**asdict(row), "finding": one_line(their_line_first(row.finding))})
            file.flush()
            yield row


def summary(rows: Sequence[Grade], ignored: Sequence[str], seconds: float) -> str:
    """Return a line for each submission, and what the instructor should look at."""
    lines, by_name = [""], {}
    for row in rows:
        by_name.setdefault(row.submission, []).append(row.passed)
    wide = max(map(len, by_name), default=0)
    for name, passed in by_name.items():
        skipped = passed.count("not graded")
        more = f"   ({skipped} not graded)" if skipped else ""
        lines.append(f"{name:{wide}}  {passed.count('yes')} of {len(passed) - skipped}{more}")
    if ignored:
        shown = ", ".join(ignored[:LISTED]) + " …" * (len(ignored) > LISTED)
        lines.append(f"no notebooks, so not graded: {shown}")
    right = sum(row.passed == "yes" for row in rows)
    lines.append(f"{right} of {len(rows)} passed, in {seconds:.0f} s")
    return "\n".join(lines)
