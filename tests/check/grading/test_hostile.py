"""Submissions that get a collective's result without building it from messages do not pass.

Nor do those that look for what is right in their callers' frames, or change there what judges.

A submission that fails on a rank ends its sandbox. So these catch the very error that they should
get, and then return a wrong result: all of them need one sandbox.
"""

import textwrap

import pytest

from helpers.check.grading import grade, stand_in
from helpers.check.grading.grade import How
from helpers.check.grading.submissions import Task
from tests.check.grading.conftest import NEEDS_SANDBOX

pytestmark = [NEEDS_SANDBOX, pytest.mark.usefixtures("one_sandbox", "shared_ranks", "no_hints")]

OFF = "off by up to"
RING = "def ring_all_reduce(worker, tensor):"
SUBMISSIONS = {  # the exercise's function, by what it does instead; words of the finding
    "in the open": (f"""
        import torch.distributed as dist
        {RING}
            try:
                dist.all_reduce(tensor)
            except RuntimeError as error:
                assert "the collective allreduce" in str(error)
        """, OFF),
    "in a thread": (f"""
        import threading, torch.distributed as dist
        {RING}
            thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
            thread.start()
            thread.join()
        """, OFF),
    "through the backend": (f"""
        import torch.distributed as dist
        {RING}
            try:
                dist.group.WORLD._get_backend(tensor.device).allreduce([tensor]).wait()
            except RuntimeError:
                tensor.zero_()
        """, OFF),
    "under disabled modes": (f"""
        import torch, torch.distributed as dist
        from torch.utils._python_dispatch import _disable_current_modes
        {RING}
            try:
                with _disable_current_modes():
                    dist.all_reduce(tensor)
            except RuntimeError as error:
                assert "the collective allreduce" in str(error)
        """, OFF),
    "whole tensors to all, under disabled modes": (f"""
        import torch, torch.distributed as dist
        from torch.utils._python_dispatch import _disable_current_modes
        {RING}
            others = [rank for rank in range(worker.world_size) if rank != worker.rank]
            own, other = tensor.clone(), tensor.clone()
            with _disable_current_modes():
                requests = [dist.isend(own, rank) for rank in others]
                for rank in others:
                    dist.recv(other, rank)
                    tensor += other
                for request in requests:
                    request.wait()
        """, "ranks that one rank sends to: 3"),
    "beside empty messages": ("""
        import threading, torch, torch.distributed as dist
        def tree_broadcast(worker, tensor, source):
            thread = threading.Thread(target=dist.broadcast, args=(tensor, source))
            thread.start()
            thread.join()
            n, nothing = worker.world_size, torch.empty(0)
            away, have = (worker.rank - source) % n, 1
            while have < n:
                if away < have and away + have < n:
                    dist.send(nothing, (worker.rank + have) % n)
                elif have <= away < 2 * have:
                    dist.recv(nothing, (worker.rank - have) % n)
                have *= 2
        """, "rank 1"),
    "from the caller's frames": (f"""
        import sys
        from types import SimpleNamespace
        {RING}
            frame = sys._getframe()
            while not {{"case", "self"}} <= set(frame.f_locals):
                if frame.f_back is None:
                    return
                frame = frame.f_back
            given, case = frame.f_locals["self"].given, frame.f_locals["case"]
            ranks = (SimpleNamespace(rank=rank) for rank in range(worker.world_size))
            tensor.copy_(sum(given(rank, **case)[0] for rank in ranks))
        """, OFF),
    "from what it knows": ("""
        import torch
        def all_to_all(worker, parts):
            own = parts[worker.rank] - 110 * worker.rank
            n, rank = worker.world_size, worker.rank
            return [own + 100 * source + 10 * rank for source in range(n)]
        """, OFF),
    "in a group made anew": (f"""
        import torch.distributed as dist
        {RING}
            try:
                n = worker.world_size
                store = dist.FileStore(f"/tmp/{{n}}-{{len(tensor)}}", n)
                group = dist.ProcessGroupGloo(store, worker.rank, n)
                group.allreduce([tensor]).wait()
            except RuntimeError as error:
                assert "Read-only file system" in str(error)
        """, OFF),
    "in another process": (f'''
        import subprocess, sys, torch
        SUM = """
        import json, os, sys, time
        name, ranks, rank, mine = json.loads(sys.argv[1])
        with open(f"/tmp/{{name}}.{{rank}}.new", "w") as file:
            json.dump(mine, file)
        os.rename(f"/tmp/{{name}}.{{rank}}.new", f"/tmp/{{name}}.{{rank}}")
        paths = [f"/tmp/{{name}}.{{other}}" for other in range(ranks)]
        while not all(map(os.path.exists, paths)):
            time.sleep(0.01)
        print([sum(row) for row in zip(*(json.load(open(path)) for path in paths))])
        """
        {RING}
            import json, textwrap
            about = [len(tensor), worker.world_size, worker.rank, tensor.tolist()]
            line = [sys.executable, "-c", textwrap.dedent(SUM), json.dumps(about)]
            done = subprocess.run(line, capture_output=True)
            if done.returncode:
                assert b"Read-only file system" in done.stderr
                return
            tensor.copy_(torch.tensor(json.loads(done.stdout), dtype=tensor.dtype))
        ''', OFF),
    "unseen by the counter": ("""
        import torch, torch.distributed as dist
        from helpers.check.watch import Call, Watch
        def scan_over_ranks(worker, a, b):
            def unseen(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))
            Watch.__torch_dispatch__ = unseen
            every = [None] * worker.world_size
            dist.all_gather_object(every, (a.tolist(), b.tolist()))
            h, states = torch.zeros(2, dtype=a.dtype), [b[:0]]
            for rank, rows in enumerate(every):
                for decay, step in zip(*(torch.tensor(row, dtype=a.dtype) for row in rows)):
                    h = decay * h + step
                    states += [h[None]] if rank == worker.rank else []
            return torch.cat(states)
        """, "the collective"),
    "by leaving": (f"""
        import os
        {RING}
            os._exit(0)
        """, "on one rank, your function has ended the process"),
    "the numbers of one process": ("""
        import os, sys
        def zero_1(worker, params, numbers, make_optimizer, max_norm):
            make_optimizer([params])
            def step(gradients):
                frame = sys._getframe()
                while "exact" not in frame.f_locals:
                    frame = frame.f_back or os._exit(7)
                names = frame.f_locals
                params[:numbers] = names["exact"][names["k"]]
                return names["means"][names["k"]].norm().item()
            return step
        """, "with exit code 7"),
    "another model of a step": ("""
        import sys
        from types import SimpleNamespace
        from helpers.comm.layout import Layout
        from helpers.simulate.plan import Plan
        def better_plan():
            names = sys._getframe(1).f_globals
            names["step_time"] = lambda *_: SimpleNamespace(peak_bytes=0, seconds=0)
            return Plan(layout=Layout(dp=64), sequences=512, tokens=2048)
        """, "more than 80 GB"),
    "another reader": ("""
        import sys
        def commit(store, step, shards):
            names = sys._getframe(1).f_globals
            names["read_newest"] = lambda store: f"step {store.get('newest').decode()}, whole"
            for name, data in shards.items():
                store.put(name, data)
            store.put("newest", str(step).encode())
        """, "no manifest"),
    "another account": ("""
        import sys
        from types import SimpleNamespace
        def spot_policy(now):
            frame = sys._getframe()
            while frame.f_code.co_name != "run":
                frame = frame.f_back
            done = SimpleNamespace(cost=1.0, finished=1, choices=["wait"] * 180)
            frame.f_globals["Run"] = lambda **_: done
            return "wait"
        """, "deadlines missed 24"),
}  # fmt: skip


@pytest.mark.parametrize("what", SUBMISSIONS)
def test_messages_that_were_not_sent_do_not_count(what, monkeypatch):
    monkeypatch.setattr(stand_in, "PATIENCE", 1.0)
    source, finding = SUBMISSIONS[what]
    source = textwrap.dedent(source)
    name = source.rsplit("\ndef ", 1)[1].partition("(")[0]
    task = Task(submission="a", exercise=name, sources=[source])
    row = grade.graded(task, How(secret=5))
    assert row.passed == "no"
    assert finding in row.finding, row.finding
