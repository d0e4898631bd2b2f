"""Run a share of the tests: whole files, which several processes of pytest take from one queue.

`.ci/suite.py` starts these processes, all with the same files as arguments. A process imports a
file when it takes that file, so no file is imported twice. Tests that share a fixture, or a kernel,
stay together, in order. The numbers of the files wait in a pipe: a read of four bytes takes one.

What happens is written to a file, a line of JSON at a time, so that a process that dies leaves the
results of the tests before.
"""

import itertools
import json
import os
import time
from functools import partial
from pathlib import Path

import nbval.kernel
import pytest


def pytest_configure(config):
    nbval.kernel.KernelManager = partial(Kernel, transport_encryption="auto")
    if "SUITE_SHARE" in os.environ:
        given = json.loads(os.environ.pop("SUITE_SHARE"))
        config.pluginmanager.register(Share(**given), "share")


class Kernel(nbval.kernel.KernelManager):
    """What it sends is encrypted: other users of the machine can connect to it.

    Nobody reads its cells, so the first launch waits for what the ranks need: else each of them
    would import that for itself.
    """

    def start_kernel(self, **options):
        super().start_kernel(env={**os.environ, "HELPERS_EARLY": "no"}, **options)


class Share:
    """What one process does.

    Args:
        queue: the pipe's file descriptor.
        results: the file to write to.
        left_out: a JSON file with the names of the tests to leave out.
    """

    def __init__(self, queue: int, results: str, left_out: str):
        self.queue, self.files = queue, []
        os.set_inheritable(queue, False)
        self.results = open(results, "a", encoding="utf-8")  # noqa: SIM115  as long as the process
        self.left_out = frozenset(json.loads(Path(left_out).read_text("utf-8")))

    def write(self, **line):
        print(json.dumps(line), file=self.results, flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        """Collect the files, without importing them."""
        self.collecting = True
        session.perform_collect(genitems=False)
        self.collecting = False
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        if self.collecting:  # files, which other plugins must not take for tests
            self.files = list(items)
            items.clear()
        else:
            items[:] = [item for item in items if item.nodeid not in self.left_out]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        while number := os.read(self.queue, 4):
            self.run(session, self.files[int.from_bytes(number, "big")])
            if session.shouldstop or session.shouldfail:
                while os.read(self.queue, 1 << 16):  # the other processes end after their files
                    pass
        return True

    def run(self, session, file):
        """Import a file, and run those of its tests that are wanted."""
        began, name = time.monotonic(), file.nodeid.split("::")[0]
        self.write(begun=name)
        items = list(session.genitems(file))
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=items
        )
        session.testscollected += len(items)
        for item, after in itertools.zip_longest(items, items[1:]):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldstop or session.shouldfail:
                break
        self.write(ended=name, seconds=round(time.monotonic() - began, 3))

    def pytest_runtest_logstart(self, nodeid):
        self.write(begun=nodeid)

    def pytest_runtest_logreport(self, report):
        line = {"test": report.nodeid, "when": report.when}
        line |= {"outcome": report.outcome, "seconds": report.duration}
        if report.skipped and isinstance(report.longrepr, tuple):
            line["text"] = report.longrepr[2]
        if report.failed:
            sections = (f"--- {name} ---\n{text}" for name, text in report.sections)
            line["text"] = "\n".join([report.longreprtext, *sections])
        self.write(**line)

    def pytest_collectreport(self, report):
        if not report.passed:
            text = report.longrepr[2] if report.skipped else report.longreprtext
            self.write(test=report.nodeid, outcome=report.outcome, seconds=0, text=str(text))
