"""Each rank ends in its own way, and the agent tells how; the others hear of every end."""

import os
import signal
import time

import torch.distributed as dist

from helpers.resilience.agent import Agent
from helpers.resilience.crew import GONE
from helpers.runtime.launch import launch


def body(store, name):
    if name == 0:
        raise ValueError("a mistake of the program")
    if name > 1:
        os.kill(os.getpid(), signal.SIGKILL if name == 2 else signal.SIGSTOP)
    return {"name": name}


def four(worker):
    dist.destroy_process_group()
    agent = Agent(body)
    names = [agent.start() for _ in range(3)]
    while agent.look():
        time.sleep(0.01)
    names.append(agent.start())  # after the others have ended
    os.waitid(os.P_PID, agent.running[3], os.WSTOPPED | os.WNOWAIT)
    assert agent.look()
    gone = sorted(agent.store.get(GONE).decode().split(","))
    agent.close()
    left = os.path.exists(f"/proc/{agent.running[3]}")
    return names, agent.codes, agent.results(), gone, left


def test_how_each_rank_ended():
    [(names, codes, results, gone, left)] = launch(four, 1, device="cpu", timeout=60)
    assert names == [0, 1, 2, 3]
    assert codes == {0: 1, 1: 0, 2: -signal.SIGKILL}
    assert results == {1: {"name": 1}}
    assert gone == ["", "0", "1", "2"]
    assert not left  # not even the rank that is stopped
