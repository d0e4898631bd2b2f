"""Make the key-value store in which the ranks of a launcher meet, and share a key there."""

import atexit
import os
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from helpers.runtime.launcher import Place, interface_towards
from helpers.runtime.private import is_own, open_private
from helpers.runtime.proof import KEY_BYTES, new_key

POLL_SECONDS = 0.02
KEY_POLL_SECONDS = 0.005


def meet(place: Place, timeout: float) -> dist.Store:
    """Return a store that only this attempt of these ranks uses.

    Args:
        timeout: seconds to wait for the other ranks.

    Raises:
        RuntimeError: no variable names a meeting point, or some rank is missing.
    """
    limit = timedelta(seconds=timeout)
    try:
        if place.launcher == "torchrun":
            store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=limit))
        elif place.one_machine:
            return meet_in_folder(place, timeout)
        elif place.address is None:
            raise RuntimeError(
                f"{place.launcher} started ranks on several machines, and no variable names the "
                "machine of rank 0. Name that machine, and a free port there: "
                "mpiexec -genv MASTER_ADDR node1 -genv MASTER_PORT 29500 … "
                "(Open MPI: mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500 …)"
            )
        else:
            store = meet_at_address(place, limit)
        return fresh(store, place, timeout)
    except (dist.DistError, TimeoutError) as error:
        raise RuntimeError(
            f"rank {place.rank} of {place.world_size} did not meet the others within "
            f"{timeout:g} s; does every rank reach this launch? ({str(error).splitlines()[0]})"
        ) from error


def meet_at_address(place: Place, limit: timedelta) -> dist.Store:
    """Meet at `place.address`; rank 0 listens on that address alone, unless it is a loopback."""
    listening = None
    if place.rank == 0:
        host = socket.gethostbyname(place.address)
        if host.startswith("127."):
            host = ""  # the machine's own name for itself; the other machines use another address
        listening = listen(host, place.port)
    return dist.TCPStore(
        place.address,
        place.port,
        place.world_size,
        is_master=place.rank == 0,
        timeout=limit,
        wait_for_workers=True,
        master_listen_fd=listening.detach() if listening else None,
    )


def meet_in_folder(place: Place, timeout: float) -> dist.Store:
    """Meet on one machine, through a file in a folder of this user, without a port."""
    folder = base_folder() / f"helpers-{os.getuid()}-{meeting_name(place)}"
    name = folder / "store"
    file = open_store(folder)
    if os.path.isdir("/proc/self/fd"):  # folder and name can go once all ranks have met
        name = f"/proc/self/fd/{file}"
    store = dist.FileStore(str(name), place.world_size)
    store.set_timeout(timedelta(seconds=timeout))
    try:
        return fresh(store, place, timeout)
    finally:
        if place.rank == 0 and os.path.isdir("/proc/self/fd"):
            shutil.rmtree(folder, ignore_errors=True)
        elif place.rank == 0:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def base_folder() -> Path:
    """Return XDG_RUNTIME_DIR if it is this user's alone, else the folder for temporary files."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    if own and os.path.isabs(own):
        try:
            if is_own(os.stat(own)):
                return Path(own)
        except OSError:  # Slurm sets the variable, but the folder is on another machine
            pass
    return Path(tempfile.gettempdir())


def open_store(folder: Path) -> int:
    """Return the descriptor of the file in which the ranks meet; the first rank makes the file.

    Raises:
        RuntimeError: another user has made the folder, or can enter it.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # another rank was faster, or another user
        pass
    try:
        return open_private(folder, "store", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RuntimeError(
            f"the ranks cannot meet in {folder}: it is not this user's alone, so another user may "
            "have made it. Set XDG_RUNTIME_DIR to a folder that only you can enter "
            "(mkdir -m 700), and start again"
        ) from error


def listen(host: str, port: int) -> socket.socket:
    """Listen on one address: PyTorch would listen on every interface, but it accepts a socket."""
    sock = socket.create_server((host, port), backlog=1024)
    sock.set_inheritable(False)
    return sock


def meeting_name(place: Place) -> str:
    """Return a name that only the ranks of this start on this machine share."""
    if place.launcher == "srun":
        return place.start.replace(" ", "-")
    if namespace := os.environ.get("PMIX_NAMESPACE"):
        return "".join(c if c.isalnum() else "-" for c in namespace)
    proxy = os.getppid()
    try:  # the process that made mpiexec's socket for each rank, even if a script is in between
        with socket.socket(fileno=os.dup(int(os.environ["PMI_FD"]))) as sock:
            pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, 17, 12))
            proxy = pid or proxy  # 17: SO_PEERCRED, on Linux
    except (KeyError, ValueError, OSError, struct.error):
        pass
    return f"mpiexec-{proxy}"


def fresh(store: dist.Store, place: Place, timeout: float) -> dist.Store:
    """Return the part of the store that belongs to this attempt alone.

    `torchrun --max-restarts` starts the ranks again on the same store. The keys of the last attempt
    are still there, and no variable names the attempt alike on all machines. So each rank says
    hello with a new random name, and rank 0 answers that name.
    """
    mine, until = secrets.token_hex(8), time.monotonic() + timeout
    store.set(f"hello/{place.rank}", mine)
    if place.rank:
        while not store.check([f"welcome/{mine}"]):
            if time.monotonic() > until:
                raise TimeoutError("rank 0 is missing")
            time.sleep(POLL_SECONDS)
        attempt = store.get(f"welcome/{mine}").decode()
        store.set(f"here/{attempt}/{place.rank}", "")
        return dist.PrefixStore(attempt, store)
    attempt, missing, answered = mine, set(range(1, place.world_size)), {}
    while missing:
        if time.monotonic() > until:
            raise TimeoutError(f"rank {min(missing)} is missing")
        for rank in sorted(missing):
            if store.check([f"here/{attempt}/{rank}"]):
                missing.discard(rank)
            elif store.check([f"hello/{rank}"]):
                name = store.get(f"hello/{rank}")
                if answered.get(rank) != name:
                    answered[rank] = name
                    store.set(f"welcome/{name.decode()}", attempt)
        time.sleep(POLL_SECONDS)
    return dist.PrefixStore(attempt, store)


def choose_interfaces(place: Place):
    """Have gloo and NCCL listen on loopback, or on the address that the other machines reach."""
    if place.one_machine:
        name = "lo" if sys.platform == "linux" else "lo0"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    else:
        name = interface_towards(place.address, place.port) if place.address else None
    if name and (name not in ("lo", "lo0") or place.one_machine):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def share_key(place: Place, store: dist.Store, timeout: float) -> bytes:
    """Return the call's key, by which ranks prove themselves. All call this, and get the same key.

    On one machine no other user can learn the key: rank 0 writes it into a folder of this user, and
    the ranks' store names the folder. Between machines the key goes through the store itself.
    Anyone who reaches the store's port could read it there, so only these machines may be on that
    network.

    Args:
        timeout: seconds to wait for the other ranks.

    Raises:
        RuntimeError: the folder is not this user's: another process has changed the store.
        TimeoutError: a rank has not read the key in time.
    """
    if not place.one_machine:
        if place.rank == 0:
            store.set("key", new_key().hex())
        return bytes.fromhex(store.get("key").decode())
    if place.rank == 0:
        with tempfile.TemporaryDirectory(prefix="helpers-") as folder:
            key = write_key(Path(folder), new_key())
            store.set("key", folder)
            until = time.monotonic() + timeout
            while store.add("key/read", 0) < place.world_size - 1:
                if time.monotonic() > until:
                    raise TimeoutError("not every rank has read the key")
                time.sleep(KEY_POLL_SECONDS)
            return key
    key = read_key(Path(store.get("key").decode()))
    store.add("key/read", 1)
    return key


def write_key(folder: Path, key: bytes) -> bytes:
    with open(open_private(folder, "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(key)
    return key


def read_key(folder: Path) -> bytes:
    try:
        with open(open_private(folder, "key", os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            key = file.read(KEY_BYTES)
        if len(key) == KEY_BYTES:
            return key
        error = "it is too short"
    except OSError as caught:
        error = caught
    raise RuntimeError(
        f"no key of these ranks in {folder} ({error}): another user may have named it. Start again"
    )
