"""A rank, a torchrun, a cable fails: the others say what happened, and end soon.

Two torchruns on two networks joined by a cable, one rank on each.
"""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.runtime.joined.machines import (
    SCRIPT,
    can_make_networks,
    end,
    finish,
    two_agents,
    two_machines,
    until,
)

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not can_make_networks(), reason="no network namespaces can be made here"),
]
SOON = 25.0  # seconds; collectives give up after 1800, torchrun's own farewell after 300


@pytest.fixture
def pair():
    machines = two_machines()
    yield machines
    for machine in machines:
        machine.close()


@pytest.fixture
def busy(pair, tmp_path):
    """Two agents with a rank each that never ends: agents, ranks' processes, by machine."""
    agents = two_agents(pair, SCRIPT, "busy", tmp_path)
    pids = [tmp_path / f"busy{rank}" for rank in range(2)]
    until(lambda: all(path.exists() and path.read_text() for path in pids))
    ranks = [psutil.Process(int(path.read_text())) for path in pids]
    by_agent = {rank.ppid(): rank for rank in ranks}
    yield agents, [by_agent[agent.pid] for agent in agents]
    for rank in ranks:
        if rank.is_running():
            rank.kill()
    for agent in agents:
        end(agent)
        agent.wait()


def ended(process: psutil.Process) -> bool:
    """A torchrun that hangs does not collect its rank."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def rank_of(process: psutil.Process, folder: Path) -> int:
    return int((folder / "busy1").read_text() == str(process.pid))


def test_a_rank_that_raises_is_named_on_the_other_machine(pair, tmp_path):
    agents = two_agents(pair, SCRIPT, "fail", tmp_path)
    outs = [finish(agent) for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1]
    culprit = next(out for out in outs if "in fails_on_1" in out)
    (other,) = (out for out in outs if out is not culprit)
    headline = "rank 1 raised ValueError: the loss is not a number"
    assert headline in culprit
    assert 'raise ValueError("the loss is not a number")' in culprit
    assert headline in other  # though it was deep in a collective
    # torchrun's own report names it too, unless the torchrun with the store has ended before
    named = re.search(r"Root Cause.*rank +: 1 .*ValueError: the loss", culprit, re.DOTALL)
    assert named or "Did the remote server shutdown" in culprit, culprit
    told = json.loads((tmp_path / "1.json").read_text())
    assert (told["rank"], told["kind"]) == (1, "exception")
    assert "fails_on_1" in told["traceback"]


def test_a_rank_that_is_killed(pair, tmp_path):
    agents = two_agents(pair, SCRIPT, "die", tmp_path)
    outs = [finish(agent) for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1]
    (killed,) = (out for out in outs if "Signal 9 (SIGKILL)" in out)  # torchrun's own report
    (other,) = (out for out in outs if out is not killed)
    assert "WorkerError: a rank ended without a report: killed, or out of memory?" in other


def test_a_torchrun_that_is_killed_where_the_ranks_meet(busy, tmp_path):
    agents, ranks = busy
    lost = rank_of(ranks[0], tmp_path)
    os.kill(agents[0].pid, signal.SIGKILL)
    until(lambda: all(map(ended, ranks)), SOON)
    out = finish(agents[1], SOON)
    assert agents[1].returncode == 1
    own = f"rank {lost}: the process that started it on .* is gone: killed"
    store = "the process that keeps the ranks together is gone"
    assert re.search(f"stopping: ({own}|{store})", out), out


def test_a_cable_that_is_cut(busy, pair, tmp_path):
    agents, ranks = busy
    began = time.monotonic()
    pair[0].do("ip", "link", "set", "cable", "down")
    until(lambda: all(map(ended, ranks)), SOON)
    assert time.monotonic() > began + 4.0  # the script's own timeout
    pair[0].do("ip", "link", "set", "cable", "up")  # torchrun's own wait ends only with it
    outs = [finish(agent) for agent in agents]
    lost = rank_of(ranks[1], tmp_path)
    assert f"rank {lost}: no sign of life for 4 s: is its machine gone?" in outs[0]
    assert "no answer for 4 s from where the ranks meet: is it cut off?" in outs[1]
