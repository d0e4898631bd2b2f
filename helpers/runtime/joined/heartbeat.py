"""Watch the other ranks of a launcher while a call runs.

The ranks of `launch` are children of one process, which sees each of them end. The ranks of
torchrun have no such parent across machines. So each rank shows the next one that it lives, and all
ranks hear how the call ends. A rank that hears of a failure stops, even inside a collective.
"""

import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

BEAT_SECONDS = 1.0
GRACE_SECONDS = 2.0  # for this rank to end by itself, after another rank has failed
FIRST_BEAT_SECONDS = 1800.0  # another rank may join a call late, because it loads data first
FOREVER = timedelta(days=365)
OK = "ok"


class Watch:
    """The watch over one call.

    Args:
        stores: three connections to the call's own part of the ranks' store.
        silence: seconds without a sign of life until a rank counts as lost; None: never.

    Attributes:
        outcome: None while the call runs; then OK, or a report: rank, kind, headline, traceback.
    """

    first = FIRST_BEAT_SECONDS

    def __init__(self, stores, rank: int, world_size: int, silence: float | None):
        self.store, self.hearing, self.beating = stores
        self.rank, self.world_size, self.silence = rank, world_size, silence
        self.outcome: str | dict | None = None
        self.decided, self.over = threading.Event(), threading.Event()
        self.returned = threading.Event()  # has this rank's function returned?
        self.parent = os.getppid()
        self.answered = time.monotonic()  # the time of the store's latest answer

    def __enter__(self):
        self.store.add(f"beat/{self.rank}", 1)  # at once: every rank that met this one sees it live
        for target in (self.hear, self.beat, self.guard):
            threading.Thread(target=target, daemon=True, name=f"helpers-{target.__name__}").start()
        return self

    def __exit__(self, *_):
        self.over.set()

    def finished(self):
        """Report that this rank's function has returned. The last rank decides that all is well."""
        self.returned.set()
        if self.store.add("done", 1) == self.world_size:
            self.store.compare_set("outcome", "", OK)

    def failed(self, report: dict, store: dist.Store | None = None):
        """Report a failure. The first report counts; later ones may be consequences."""
        if store is None:
            store = self.store
            self.returned.set()
        try:
            store.compare_set("outcome", "", json.dumps(report))
        except RuntimeError:  # the store is gone, and every rank notices
            self.decide(report)

    def wait(self) -> str | dict:
        """Wait until it is decided how the call ends; an interrupt ends the waiting."""
        while not self.decided.wait(0.5):
            pass
        return self.outcome

    def decide(self, outcome):
        if not self.decided.is_set():
            self.outcome = outcome
            self.decided.set()

    def hear(self):
        try:
            self.hearing.wait(["outcome"], FOREVER)
            text = self.hearing.get("outcome").decode()
            self.decide(text if text == OK else json.loads(text))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            headline = f"the process that keeps the ranks together is gone ({reason})"
            self.decide({"rank": None, "kind": "server", "headline": headline, "traceback": ""})
        self.stop()

    def beat(self):
        """Show that this rank lives, and check whether the next rank does."""
        following = (self.rank + 1) % self.world_size
        seen, since, patience = 0, time.monotonic(), self.first
        try:
            while not (self.decided.is_set() or self.over.wait(BEAT_SECONDS)):
                if os.getppid() != self.parent:
                    self.lost(
                        self.rank,
                        f"the process that started it on {socket.gethostname()} is gone: killed?",
                    )
                self.beating.add(f"beat/{self.rank}", 1)
                beats = self.beats(following)
                self.answered = now = time.monotonic()
                if beats > seen:
                    seen, since, patience = beats, now, self.silence
                elif patience is not None and now > since + patience:
                    self.lost(
                        following, f"no sign of life for {patience:g} s: is its machine gone?"
                    )
        except RuntimeError:  # the store is gone: `hear` reports it
            pass

    def beats(self, rank: int) -> int:
        """Return a rank's number of beats. Reading adds nothing to a store in a file."""
        name = f"beat/{rank}"
        return int(self.beating.get(name)) if self.beating.check([name]) else 0

    def guard(self):
        """End the call if the store is out of reach: a request to it would then wait forever."""
        while self.silence is not None and not (
            self.decided.is_set() or self.over.wait(BEAT_SECONDS)
        ):
            if time.monotonic() > self.answered + self.silence + BEAT_SECONDS:
                what = f"no answer for {self.silence:g} s from where the ranks meet: is it cut off?"
                self.decide({"rank": None, "kind": "died", "headline": what, "traceback": ""})
                self.stop()

    def lost(self, rank: int, what: str):
        report = {"rank": rank, "kind": "died", "headline": f"rank {rank}: {what}", "traceback": ""}
        self.failed(report, self.beating)

    def stop(self):
        """End this process after a failure: it may wait for ranks that do not answer any more."""
        if self.outcome == OK:
            return
        if not self.returned.is_set():  # otherwise the call itself raises the error
            text = f"[rank {self.rank}] stopping: {self.outcome['headline']}"
            print(text, file=sys.stderr, flush=True)
        if self.over.wait(GRACE_SECONDS):
            return
        try:
            sys.stdout.flush()
        finally:
            os._exit(1)
