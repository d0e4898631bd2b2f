"""The prompt of a debugging session: which rank a command goes to; `test_debug` has a kernel."""

import sys
from types import SimpleNamespace

import pytest

from helpers.runtime.failure import WorkerError
from helpers.runtime.local import session
from helpers.runtime.local.kept import GONE, Gone


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


def test_ranks_that_are_gone_or_were_never_kept_are_told(capsys, monkeypatch):
    session.debug(SimpleNamespace(kept=None), 7)
    assert capsys.readouterr().out.startswith("Ranks are kept for a debugger only after a failure")
    monkeypatch.setattr(Ranks, "alive", lambda ranks, rank: rank == 0)
    ranks = Ranks()
    session.debug(SimpleNamespace(kept=ranks))
    assert capsys.readouterr().out == f"{GONE}\n"
    assert ranks.asked == []


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_the_end_of_the_input_or_an_interrupt_leaves_the_session(monkeypatch, capsys, end):
    def types(_):
        raise end

    monkeypatch.setattr("builtins.input", types)
    session.debug(SimpleNamespace(kept=Ranks()))
    assert capsys.readouterr().out == f"{session.HELP}\nrank 1 says ''\n\n"


@pytest.mark.parametrize("word", ["q", "quit ", " exit", "EOF"])
def test_every_word_to_leave_is_known(typed, word):
    assert typed(word) == ([(1, "")], ["rank 1 ▸ "])


def test_an_answer_ends_with_one_line_end_and_names_cells(monkeypatch, capsys):
    monkeypatch.setattr(session, "cell_name", {"/tmp/2.py": "Cell In[2]"}.get)
    session.show("> /tmp/2.py(14)train()\n-> loss")
    session.show("  /tmp/2.py(3)<module>()\n")
    session.show("x = '> /tmp/2.py(14)'")
    assert capsys.readouterr().out == (
        "> Cell In[2](14)train()\n-> loss\n  Cell In[2](3)<module>()\nx = '> /tmp/2.py(14)'\n"
    )


@pytest.mark.parametrize("shell", [None, "a shell"])
@pytest.mark.parametrize(("kind", "where"), [("exception", "it failed"), ("hang", "it waits")])
def test_the_error_says_how_to_enter_its_ranks(monkeypatch, shell, kind, where):
    taken, error = [], WorkerError("x", kind=kind)
    error.kept = Ranks()
    monkeypatch.setattr(session, "take_over", taken.append)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    session.offer(error)
    how = "%debug" if shell else "import sys; sys.last_value.debug()"
    assert error.__notes__ == [
        f"{how} enters rank 1 where {where}; the ranks are kept until the next call, "
        "5 minutes at most."
    ]
    assert taken == ([shell] if shell else [])


def test_debug_is_taken_over_once_and_keeps_its_help():
    def own(line, cell=None):
        """How it is used."""

    registered, hows = [], []
    shell = SimpleNamespace(
        find_magic=lambda *_: registered[-1] if registered else own,
        register_magic_function=lambda magic, **how: registered.append(magic) or hows.append(how),
    )
    session.take_over(shell)
    session.take_over(shell)
    assert [magic.__doc__ for magic in registered] == [own.__doc__]
    assert hows == [{"magic_kind": "line_cell", "magic_name": "debug"}]
