"""The prompt of a debugging session: which rank a command goes to; `test_debug` has a kernel."""

import sys
from types import SimpleNamespace

import pytest

from helpers.runtime.local import session
from helpers.runtime.local.kept import Gone


class Ranks:
    """Three kept ranks that note what they are asked."""

    first, size = 1, 3

    def __init__(self):
        self.asked = []

    def alive(self, rank):
        return True

    def ask(self, rank, command):
        if command == "die":
            raise Gone(f"Rank {rank} has ended.")
        self.asked.append((rank, command))
        return f"rank {rank} says {command!r}"


@pytest.fixture
def typed(monkeypatch):
    """Have a person type these lines; return the ranks, and the prompts that the person saw."""

    def type_in(*lines, rank=None):
        ranks, prompts, left = Ranks(), [], iter(lines)
        monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or next(left))
        session.debug(SimpleNamespace(kept=ranks), rank)
        return ranks.asked, prompts

    return type_in


def test_commands_go_to_the_rank_that_was_entered_last(typed, capsys):
    asked, prompts = typed("p x", "rank 2", "up", "rank 3", "w", "", "rank 0", "p y", "q")
    assert asked == [
        (1, ""), (1, "p x"), (2, ""), (2, "up"), (2, "w"), (0, ""), (0, "p y"),
    ]  # fmt: skip
    assert [prompt[5] for prompt in prompts] == list("112222200")
    said = capsys.readouterr().out
    assert "There are ranks 0 to 2." in said
    assert "rank 1 says 'p x'\n" in said


def test_a_rank_of_the_reader_s_choice_is_entered_first(typed):
    assert typed("q", rank=0) == ([(0, "")], ["rank 0 ▸ "])
    assert typed("q", rank=2)[0] == [(2, "")]
    for rank in (3, -1):
        with pytest.raises(ValueError, match=rf"no rank {rank}: there are ranks 0 to 2"):
            typed("q", rank=rank)


def test_a_rank_that_ends_ends_the_session(typed, capsys):
    assert typed("die", "never asked")[1] == ["rank 1 ▸ "]
    assert "Rank 1 has ended." in capsys.readouterr().out


def test_debug_enters_ranks_only_after_an_error_of_ranks_and_without_arguments(monkeypatch):
    own, entered = [], []
    shell = SimpleNamespace(
        find_magic=lambda *_: lambda line, cell=None: own.append((line, cell)),
        register_magic_function=lambda magic, **_: setattr(shell, "magic", magic),
    )
    session.take_over(shell)
    monkeypatch.setattr(session, "debug", entered.append)
    of_ranks, plain = SimpleNamespace(kept=Ranks()), ValueError()
    for error, line, cell in [
        (of_ranks, "", None),
        (of_ranks, " ", None),
        (of_ranks, "f(3)", None),
        (of_ranks, "", "f(3)"),
        (plain, "", None),
    ]:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        shell.magic(line, cell)
    assert entered == [of_ranks, of_ranks]
    assert own == [("f(3)", None), ("", "f(3)"), ("", None)]
