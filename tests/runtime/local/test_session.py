"""Ranks of a failed call, kept: stopped, asked, entered from a prompt, dropped.

`test_debug` has a kernel.
"""

import gc
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from helpers.runtime.cluster import Cluster
from helpers.runtime.failure import WorkerError
from helpers.runtime.local import session
from helpers.runtime.local.session import GONE, Gone


def state(pid: int) -> str:
    """The process's state; "gone" once it has ended."""
    try:
        found = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    return "gone" if found == psutil.STATUS_ZOMBIE else found


def until(pids, wanted) -> bool:
    end = time.monotonic() + 20
    while [state(pid) for pid in pids] != [wanted] * len(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def failed(monkeypatch):
    """Two ranks of a call that failed at a prompt: the error, and the ranks' pids."""

    def fails(worker):
        if worker.rank == 1:
            secret = 42
            raise ValueError(f"no good: {secret}")
        time.sleep(1000)

    monkeypatch.setattr(session, "interactive", lambda: True)
    with Cluster(2) as cluster:
        pids = list(cluster.run(lambda worker: os.getpid()))
        with pytest.raises(WorkerError) as caught:
            cluster.run(fails)
    yield caught.value, pids
    if caught.value.kept:
        caught.value.kept.drop(20)


def test_they_are_stopped_and_each_answers_while_it_is_asked(failed):
    error, pids = failed
    assert error.kept.first == 1
    assert until(pids, "stopped")
    assert error.kept.ask(1, "p secret") == "42\n"
    assert until(pids, "stopped")
    error.kept.processes.ranks[1].line.send("look")  # of a call that ended before the answer came
    assert error.kept.ask(1, "p secret + 1") == "43\n"
    assert until(pids, "stopped")


def test_a_fork_of_the_notebook_does_not_end_them(failed):
    error, pids = failed
    if (child := os.fork()) == 0:
        session.kill(error.kept.processes, error.kept.pid, 0.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert error.kept.ask(1, "p secret") == "42\n"
    session.drop(20)
    assert until(pids, "gone")
    with pytest.raises(session.Gone, match="Rank 1 has ended"):
        error.kept.ask(1, "p secret")


@pytest.mark.parametrize("asks", [0, 1])
def test_they_end_after_a_while(failed, monkeypatch, asks):
    error, pids = failed
    monkeypatch.setattr(session, "KEEP_SECONDS", 0.3)
    processes = error.kept.processes
    if asks:
        error.kept.ask(1, "p secret")
    else:
        error.kept.end.detach()
        error.kept = session.Kept(processes, 1)
    assert until(pids, "gone")


@pytest.mark.parametrize(
    ("kind", "rank", "first"),
    [
        ("exception", 2, 2),
        ("hang", None, 1),
        ("hang", 0, 0),
        ("died", 2, None),
        ("server", 0, None),
    ],
)
def test_which_failures_leave_ranks_to_enter(monkeypatch, kind, rank, first):
    monkeypatch.setattr(session, "interactive", lambda: True)
    monkeypatch.setattr(session, "_latest", None)
    monkeypatch.setattr(session, "Kept", Entered)
    error = WorkerError("x", kind=kind, rank=rank)
    error.first = 1
    assert session.keep(None, error) == (first is not None)
    assert getattr(error.kept, "first", None) == first


class Entered:
    def __init__(self, processes, first):
        self.first = first


class Noted:
    """Ranks of which one has ended; what they are told is noted."""

    def __init__(self):
        self.done = []
        self.ranks = [
            SimpleNamespace(rank=rank, status=3 if rank == 1 else None) for rank in range(3)
        ]

    def signal(self, ranks, number):
        self.done.append((ranks, number))

    def tell(self, **message):
        self.done.append(message)

    def kill(self, wait):
        self.done.append(("killed", wait))


def test_they_end_with_the_error_and_only_once():
    ranks = Noted()
    one = session.Kept(ranks, 2)
    stopped = [([0, 2], signal.SIGSTOP), {"release": 300.0}]
    assert (ranks.done, one.size, one.live) == (stopped, 3, [0, 2])
    del one
    gc.collect()
    assert ranks.done == [*stopped, ("killed", 0.0)]
    one = session.Kept(ranks, 2)
    one.drop(1.5)
    one.drop()
    del one
    gc.collect()
    assert ranks.done[3:] == [*stopped, ("killed", 1.5)]


class Line:
    """A rank that gives each of these answers in turn, or fails so."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def send(self, *message):
        self.asked.append(message)

    def receive(self):
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return (answer,), None


@pytest.mark.parametrize("error", [EOFError(), BrokenPipeError(), KeyboardInterrupt()])
def test_a_rank_is_stopped_again_however_the_question_ends(monkeypatch, error):
    """An interrupt ends the ranks: the next command would get the answer to this one."""
    monkeypatch.setattr(session, "readable", lambda ranks: False)
    ranks = Noted()
    one = session.Kept(ranks, 2)
    line = ranks.ranks[2].line = Line({"a look": 1}, "42\n", error)
    again = [{"release": 300.0}, ([2], signal.SIGCONT), ([2], signal.SIGSTOP)]
    assert one.ask(2, "p x") == "42\n"
    assert ranks.done[2:] == again
    interrupted = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if interrupted else session.Gone):
        one.ask(2, "p y")
    again[2:2] = [("killed", 0.0)] * interrupted
    assert ranks.done[5:] == again
    assert line.asked == [("debug", "p x"), ("debug", "p y")]
    with pytest.raises(session.Gone, match="Rank 1 has ended"):
        one.ask(1, "p x")


def test_ranks_of_a_server_that_is_gone_are_gone(monkeypatch):
    ranks = Noted()
    one = session.Kept(ranks, 2)
    news = [True, True, False]
    monkeypatch.setattr(session, "readable", lambda given: given is ranks and news.pop(0))
    ranks.notices = lambda: setattr(ranks.ranks[2], "status", 1)
    assert one.alive(0)
    assert news == []  # all the news is read first
    news += [False]
    assert not one.alive(2)
    news += [True]

    def lost():
        raise WorkerError("x", kind="server")

    ranks.notices = lost
    assert not one.alive(0)
    ranks.ranks = []  # killed, and closed
    assert not one.alive(0)


def test_the_next_call_ends_the_ranks_of_the_last_error(monkeypatch):
    monkeypatch.setattr(session, "interactive", lambda: True)
    monkeypatch.setattr(session, "_latest", None)
    session.drop(2.5)
    ranks, error = Noted(), WorkerError("x", kind="hang", rank=2)
    assert session.keep(ranks, error)
    session.drop(2.5)
    assert ranks.done[-1] == ("killed", 2.5)
    del error
    gc.collect()
    session.drop(2.5)
    assert ranks.done.count(("killed", 2.5)) == 1


def test_nobody_debugs_a_script_or_a_thread_or_another_error(monkeypatch):
    monkeypatch.setattr(session, "Kept", Entered)
    monkeypatch.setattr(session, "_latest", None)
    error = WorkerError("x", kind="exception", rank=1)
    for here in (False, True):
        monkeypatch.setattr(session, "interactive", lambda here=here: here)
        assert session.keep(None, error) == here
    assert not session.keep(None, KeyboardInterrupt())
    found = []
    thread = threading.Thread(target=lambda: found.append(session.keep(None, error)))
    thread.start()
    thread.join()
    assert found == [False]


class Ranks(session.Kept):
    """Three kept ranks that note what they are asked."""

    def __init__(self):
        self.asked, self.first, self.size = [], 1, 3

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
        ranks.debug(rank)
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
    of_ranks, plain = SimpleNamespace(kept=Ranks()), ValueError()
    of_ranks.debug = lambda: entered.append(of_ranks)
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
    WorkerError("x", kind="hang").debug(7)
    assert capsys.readouterr().out.startswith("Ranks are kept for a debugger only after a failure")
    monkeypatch.setattr(Ranks, "alive", lambda ranks, rank: rank == 0)
    ranks = Ranks()
    ranks.debug()
    assert capsys.readouterr().out == f"{GONE}\n"
    assert ranks.asked == []


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_the_end_of_the_input_or_an_interrupt_leaves_the_session(monkeypatch, capsys, end):
    def types(_):
        raise end

    monkeypatch.setattr("builtins.input", types)
    Ranks().debug()
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
