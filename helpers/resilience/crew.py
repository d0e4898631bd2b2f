"""Ranks that go on without the lost ones: the living form a new group, and no process starts again.

Time is cut into **epochs**. An epoch has its members, one process group, and one watch of
heartbeats. It ends when a member meets a broken connection, is silent for too long, or when a new
rank asks to come in. Then the watch breaks this epoch's connections on every rank, so that no rank
waits in a collective for a lost one. All who are there sign a list; the first who finds the list
complete, or has waited long enough, closes it. These are the next epoch's members.

The ranks meet in a store that none of them serves. A rank that is stopped may wake up later: it
finds itself off the list, and comes back as a new rank, without its memory.

Source: the idea of a quorum for each step is torchft's (github.com/meta-pytorch/torchft), which
keeps a group of groups; here, all ranks are in one group, and its state is cut anew.
"""

import itertools
import json
import os
import socket
import stat
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from helpers.runtime.joined.heartbeat import OK, Watch

POLL_SECONDS = 0.01
GONE = "gone"  # names of ranks that have ended, as an agent has seen


class Lost(RuntimeError):
    """This epoch is over: another rank has reported it."""


class Crew:
    """The ranks that are there, from the view of one of them.

    Args:
        store: of all ranks; it must outlive them, so an agent serves it. See `agent`.
        name: of this rank: a number that no other rank ever has.
        first: how many ranks form the first group.
        silence: seconds without a sign of life until a rank counts as lost. Longer than the longest
            computation between two messages.

    Attributes:
        epoch: of the present group, from 0.
        members: names, in the order of ranks.
        away: an epoch has begun without this rank: its memory may be of another history.
        joined: the last epoch ended because a rank came in.
    """

    def __init__(self, store: dist.Store, name: int, first: int, silence: float = 5.0):
        self.store, self.name, self.first, self.silence = store, name, first, silence
        self.connections = [store, store.clone(), store.clone()]
        self.epoch, self.members, self.watch = -1, [], None
        self.away = self.joined = False

    def form(self) -> bool:
        """Form the group of the next epoch. Every rank calls it, first and after each `failed`.

        Returns:
            False: the work is done; there is no next epoch.

        Raises:
            RuntimeError: a rank was lost meanwhile: call `failed`, and this again.
        """
        while True:
            following = self.epoch + 1
            self.epoch = next(e for e in itertools.count(following) if not self.listed(e))
            self.away |= self.epoch > following
            if self.epoch:  # nothing happens if that epoch has ended already
                headline = f"rank {self.name} comes in"
                self.end(self.epoch - 1, {"rank": None, "headline": headline, "new": self.name})
                if self.outcome(self.epoch - 1) == OK:
                    return False
            self.members = self.sign()
            if self.name in self.members:
                break
            self.away = True
        rank, ranks = self.members.index(self.name), len(self.members)
        stores = [dist.PrefixStore(f"{self.epoch}", store) for store in self.connections]
        older = {*sockets()}
        own = self.store.clone()  # before the watch: each alarm would make it try again
        self.watch = Lookout(stores, rank, ranks, self.silence, older)
        self.watch.__enter__()
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"group{self.epoch}", own),
            rank=rank,
            world_size=ranks,
            # The watch is quicker, but gloo tells no error to who has a message in part. By this
            # time the others have not closed the next list yet: they sign later than it began.
            timeout=timedelta(seconds=self.silence),
        )
        return True

    def sign(self) -> list[int]:
        """Sign the list of this epoch, wait until it is closed, and return it."""
        here, closed = f"{self.epoch}/here", f"{self.epoch}/members"
        self.store.append(here, f"{self.name},")
        until, expected = time.monotonic() + self.silence, set(range(self.first))
        if self.epoch:
            ended = json.loads(self.outcome(self.epoch - 1))
            before = json.loads(self.store.get(f"{self.epoch - 1}/members"))
            lost = [] if ended["rank"] is None else [before[ended["rank"]]]
            expected = {*before, ended.get("new", before[0])} - {*lost}
        else:
            until += 60.0  # processes start one after another
        while not self.listed(self.epoch):
            signed, gone = self.names(here), self.names(GONE)
            if expected <= signed | gone or time.monotonic() > until:
                text = json.dumps(sorted(signed - gone))
                self.store.compare_set(closed, "", text)
            else:
                time.sleep(POLL_SECONDS)
        return json.loads(self.store.get(closed))

    def failed(self, error: BaseException):
        """Leave the present group: `error` says that it is broken. Then call `form`."""
        self.joined = False
        if self.watch is not None:
            headline = f"{type(error).__name__}: {error}".splitlines()[0]
            self.end(self.epoch, {"rank": None, "headline": headline})
            self.joined = "new" in self.watch.wait()
            self.leave()

    def finish(self):
        """Report that this rank's work is done. Returns when all ranks' is.

        Raises:
            Lost: a rank was lost before: there is work to do again.
        """
        self.watch.finished()
        outcome = self.watch.wait()
        if outcome != OK:
            raise Lost(outcome["headline"])
        self.leave()

    def leave(self):
        self.watch.__exit__()
        self.watch.cut()  # a thread of gloo may wait for a rank: the end of a group waits for it
        self.watch = None
        if not dist.is_initialized():
            # A group that was not completed has counted as one, until the end of a group that was:
            # the next groups of two such ranks would have different names, and never meet.
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()

    def end(self, epoch: int, report: dict):
        text = json.dumps({"kind": "died", "traceback": "", **report})
        self.store.compare_set(f"{epoch}/outcome", "", text)

    def outcome(self, epoch: int) -> str:
        return self.store.get(f"{epoch}/outcome").decode()

    def listed(self, epoch: int) -> bool:
        return self.store.check([f"{epoch}/members"])

    def names(self, key: str) -> set[int]:
        """The names that were appended to a key."""
        text = self.store.get(key).decode() if self.store.check([key]) else ""
        return {int(name) for name in text.split(",")[:-1]}


class Lookout(Watch):
    """The watch of one epoch. Its alarm breaks the epoch's connections; the process goes on.

    Args:
        older: inodes of the sockets from before the epoch.
    """

    def __init__(self, stores, rank: int, world_size: int, silence: float, older: set[int]):
        super().__init__(stores, rank, world_size, silence)
        self.first, self.older, self.lock = silence, older, threading.Lock()

    def __exit__(self, *_):
        with self.lock:  # a later alarm would break the connections of the next epoch
            super().__exit__()

    def stop(self):
        while self.outcome != OK and not self.over.is_set():
            with self.lock:
                if not self.over.is_set():
                    self.cut()
            self.over.wait(POLL_SECONDS)  # and again: the group may be opening connections now

    def cut(self):
        """Break the TCP connections that this process has opened since the epoch began."""
        for inode, number in sockets().items():
            if inode not in self.older:
                try:
                    with socket.socket(fileno=os.dup(number)) as one:
                        if os.fstat(one.fileno()).st_ino != inode:
                            continue
                        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                            self.hang_up(one)
                        else:
                            one.shutdown(socket.SHUT_RDWR)
                except OSError:  # closed in between, or not connected
                    pass

    def hang_up(self, listening: socket.socket):
        """Connect in place of a lost rank, and end the connection.

        While gloo makes a group, a rank waits for others to connect: there is nothing to break, and
        gloo aborts if its listening socket is closed. A connection begins with the number of the
        pair, from 0, in 8 bytes (gloo/transport/tcp/listener.cc).
        """
        for pair in range(self.world_size):
            with socket.create_connection(listening.getsockname()[:2], timeout=1.0) as one:
                one.sendall(pair.to_bytes(8, sys.byteorder))


def sockets() -> dict[int, int]:
    """This process's TCP sockets: inode -> file descriptor."""
    found = {}
    for number in map(int, os.listdir("/dev/fd")):
        try:
            status = os.fstat(number)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    found[status.st_ino] = number
        except OSError:  # closed in between
            continue
    return found
