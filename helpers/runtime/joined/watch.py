"""What a rank that a launcher started knows of the others while a call runs.

Ranks of `launch` are children of one process, which sees each of them end. Ranks of torchrun have
no such parent across machines. So each shows the next that it lives, all hear how the call ends,
and a rank that hears of another's failure stops, even if it is deep inside a collective.
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
GRACE_SECONDS = 2.0  # for this rank to end by itself, after another one has failed
FIRST_BEAT_SECONDS = 1800.0  # another rank may come late to a call: it loads data, say
FOREVER = timedelta(days=365)
OK = "ok"


class Watch:
    """The watch over one call.

    Args:
        stores: three connections to what this call has to itself in the ranks' store.
        silence: seconds after which a rank that shows no life counts as lost; None: never.

    Attributes:
        outcome: None while the call runs; then OK, or a report: rank, kind, headline, traceback.
    """

    def __init__(self, stores, rank: int, world_size: int, silence: float | None):
        self.store, self.hearing, self.beating = stores
        self.rank, self.world_size, self.silence = rank, world_size, silence
        self.outcome: str | dict | None = None
        self.decided, self.over = threading.Event(), threading.Event()
        self.returned = threading.Event()  # this rank's function has
        self.parent = os.getppid()
        self.answered = time.monotonic()  # when the store last did

    def __enter__(self):
        self.store.add(f"beat/{self.rank}", 1)  # at once: whoever met this rank knows that it lives
        for target in (self.hear, self.beat, self.guard):
            threading.Thread(target=target, daemon=True, name=f"helpers-{target.__name__}").start()
        return self

    def __exit__(self, *_):
        self.over.set()

    def finished(self):
        """This rank's function has returned. The last to say so decides that all is well."""
        self.returned.set()
        if self.store.add("done", 1) == self.world_size:
            self.store.compare_set("outcome", "", OK)

    def failed(self, report: dict, store: dist.Store | None = None):
        """The first report counts; later ones may be consequences."""
        if store is None:
            store = self.store
            self.returned.set()
        try:
            store.compare_set("outcome", "", json.dumps(report))
        except RuntimeError:  # the store is gone, and every rank sees that
            self.decide(report)

    def wait(self) -> str | dict:
        """Until it is decided how the call ends; an interrupt comes through."""
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
        """Show that this rank lives, and look whether the next one does."""
        following = (self.rank + 1) % self.world_size
        seen, since, patience = 0, time.monotonic(), FIRST_BEAT_SECONDS
        try:
            while not (self.decided.is_set() or self.over.wait(BEAT_SECONDS)):
                if os.getppid() != self.parent:
                    self.lost(
                        self.rank, f"what started it on {socket.gethostname()} is gone: killed?"
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
        except RuntimeError:  # the store is gone: `hear` says so
            pass

    def beats(self, rank: int) -> int:
        """How often that rank has shown that it lives. Asking adds nothing to a store in a file."""
        name = f"beat/{rank}"
        return int(self.beating.get(name)) if self.beating.check([name]) else 0

    def guard(self):
        """The store answers at once, or is out of reach: then asking it would wait forever."""
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
        """End this process after a failure: it may be waiting for ranks that answer no more."""
        if self.outcome == OK:
            return
        if not self.returned.is_set():  # else the call itself raises what happened
            text = f"[rank {self.rank}] stopping: {self.outcome['headline']}"
            print(text, file=sys.stderr, flush=True)
        if self.over.wait(GRACE_SECONDS):
            return
        try:
            sys.stdout.flush()
        finally:
            os._exit(1)
