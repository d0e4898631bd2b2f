"""What submitted code can reach from its sandbox, and what it can do to it."""

import errno
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from helpers.check.elsewhere import Failed
from helpers.check.grading import frames, plain, sandbox, stand_in
from helpers.check.grading.sandbox import COURSE, Limits, NotStarted, Sandbox
from helpers.check.grading.stand_in import Shut, StandIn

pytestmark = pytest.mark.skipif(
    sandbox.bubblewrap() is None, reason="no sandbox: bubblewrap (bwrap) is missing or forbidden"
)


@pytest.fixture(scope="module")
def inside():
    """inside(body, *arguments): what a function with this body returns in a sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_TOKEN", "the instructor's")
        with Sandbox() as shut:
            yield lambda body, *given: ask(shut, body, *given)


def ask(shut, body, *given):
    source = "import os, ctypes, sys\ndef probe(*given):\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )
    return Shut(shut, "probe", source.split("\n", 1)).call(StandIn("probe"), given)


def test_no_file_but_python_and_the_package(inside):
    found = inside(
        """
        seen = {folder: sorted(os.listdir(folder)) for folder in given[0] if os.path.exists(folder)}
        checks = given[1] + "/helpers/check/"
        weeks = [checks + name for name in os.listdir(checks) if name.startswith("week")]
        seen["week"] = [file for week in weeks if os.path.isdir(week) for file in os.listdir(week)]
        seen["week"] += [week for week in weeks if os.path.getsize(week) and os.path.isfile(week)]
        return seen
        """,
        ["/", "/home", "/root", "/var", "/etc", str(COURSE), os.environ["HOME"], "/tmp"],
        str(COURSE),
    )
    assert found["week"] == []
    assert set(found["/tmp"]) - set(COURSE.parts) <= {".cache"}  # a clone may lie there
    assert not {"home", "var", "run", "sys", "opt", "mnt"} & set(found["/"]) - set(COURSE.parts)
    assert set(found["/etc"]) <= {"alternatives", "ld.so.cache"}
    assert not {"notebooks", "tests", ".git"} & set(found.get(str(COURSE), []))


def test_the_environment_of_the_instructor_is_not_in_any_process(inside):
    found = inside(
        """
        seen = []
        for number in filter(str.isdigit, os.listdir("/proc")):
            with open(f"/proc/{number}/environ", "rb") as file:
                seen.append(file.read())
        return seen
        """
    )
    assert 2 <= len(found) <= 5
    assert not any(b"OWN_TOKEN" in one for one in found)


def test_the_walls_cannot_be_taken_down(inside):
    """As root, bwrap's child would keep the right to mount: then the course is writable."""
    found = inside(
        """
        libc = ctypes.CDLL(None, use_errno=True)
        MNT_DETACH, REMOUNT_BIND = 2, 32 | 4096
        course = (given[0] + "/helpers").encode()
        def attempt():
            answers = [libc.umount2(course + b"/check/week05", MNT_DETACH)]
            answers += [libc.mount(None, course, None, REMOUNT_BIND, None)]
            seen = os.listdir(course + b"/check/week05")
            return answers + [os.access(course, os.W_OK), len(seen)]
        first = attempt()
        pid = os.fork()
        if not pid:
            libc.unshare(0x10000000 | 0x00020000)  # a user and mounts of its own
            os._exit(attempt() == [-1, -1, False, 0])
        return first, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        """,
        str(COURSE),
    )
    assert found == ([-1, -1, False, 0], 1)


def test_no_network_and_nobody_else_s_processes(inside):
    found = inside(
        """
        import socket
        with socket.socket() as s:
            s.settimeout(2)
            code = s.connect_ex(("192.0.2.1", 80))
        return code, os.path.exists(f"/proc/{given[0]}/cmdline") and given[0] > 50, os.getpid()
        """,
        os.getpid(),
    )
    assert found[0] == errno.ENETUNREACH
    assert found[1] is False
    assert found[2] < 50


def test_what_can_be_written_and_what_networks_there_are(inside):
    """Two small folders, of a limited size, and a loopback."""
    found = inside(
        """
        import socket
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split()[4:6] for line in file]
        folders = [place for place, how in mounts if os.path.isdir(place)]
        open_mounts = [place for place, how in mounts if "rw" in how.split(",")]
        for place in set(open_mounts) - {"/proc"}:  # what is in a mount is as the mount is
            for folder, below, _ in os.walk(place):
                same = os.stat(folder).st_dev == os.stat(place).st_dev
                below[:] = set(below) - {".cache"} if same else ()
                folders.append(folder)
        writable = set()
        for folder in folders:
            try:
                os.close(os.open(folder + "/mine", os.O_CREAT | os.O_WRONLY))
                writable.add(folder)
            except OSError:
                pass
        sizes = []
        for folder in sorted(writable):
            os.remove(folder + "/mine")
            seen = os.statvfs(folder)
            sizes.append(seen.f_blocks * seen.f_frsize)
        return sorted(writable), sizes, socket.if_nameindex()
        """
    )
    most = Limits().file_bytes
    assert (found[0], found[1]) == (["/dev/shm", "/tmp"], [most, most])
    assert found[2] == [(1, "lo")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = []\nfor _ in range(100_000):\n    a = [a]\nreturn a", "nested too deeply"),
        ("async def f(): pass\nreturn f()", "returned a value of type coroutine"),
        ("return (k for k in 'abc')", "type generator"),
        ("class Three(int): pass\nreturn Three(3)", "type __main__.Three"),
        ("return lambda: 1", "type function"),
        ("return input()", "EOFError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("return probe(*given)", "RecursionError"),
        ("import torch\nreturn torch.eye(3).to_sparse()", "type torch.Tensor"),
    ],
)
def test_answers_of_other_kinds_are_refused(inside, body, why):
    with pytest.raises(Failed, match=why.replace(".", "\\.")):
        inside(body)
    assert inside("return 3") == 3  # and the next question is answered


@pytest.mark.parametrize("body", ["return 'x' * 9_000", "return [[]] * 3_000"])
def test_an_answer_of_much_json_is_not_parsed(inside, monkeypatch, body):
    monkeypatch.setattr(plain, "LARGEST", 8_000)
    with pytest.raises(Failed, match="more than 8,000 bytes besides tensors"):
        inside(body)


def test_an_answer_that_is_too_large_ends_the_sandbox(monkeypatch):
    monkeypatch.setattr(frames, "LARGEST", 1_000_000)
    with Sandbox() as shut:
        with pytest.raises(Failed, match="at most 1,000,000 are read"):
            ask(shut, "import torch\nreturn torch.zeros(1_000_000)")
        assert shut.process.returncode is not None


def test_what_is_printed_goes_nowhere(inside, capfd):
    assert inside("print('1 of 1 passed\\n' * 100_000)\nsys.stderr.write('x')\nreturn 3") == 3
    assert capfd.readouterr() == ("", "")


def test_what_the_walls_leave(inside, monkeypatch):
    """Few variables, small folders for files, and an end with the judge."""
    found = inside(
        """
        signal = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)  # PR_GET_PDEATHSIG
        sizes = [os.statvfs(path) for path in ("/tmp", "/dev/shm")]
        with open("/proc/1/environ") as file:
            first = sorted(one.split("=")[0] for one in file.read().split(chr(0)) if one)
        with open("/proc/self/environ") as file:
            own = dict(one.split("=", 1) for one in file.read().split(chr(0)) if one)
        small = [size.f_blocks * size.f_frsize for size in sizes]
        places = sys.prefix, sys.base_prefix, "/usr", given[0]
        writable = [place for place in places if os.access(place, os.W_OK)]
        return signal.value, small, first, own, os.getcwd(), os.getsid(0), writable
        """,
        str(Path(psutil.__file__).parent),
    )
    assert found[0] == signal.SIGKILL
    assert found[1] == 2 * [Limits().file_bytes]
    assert set(found[2]) <= {"PWD"}
    assert found[3].pop("PWD", "/tmp") == "/tmp"
    assert found[3] == {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(COURSE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    } | {name: os.environ[name] for name in ("TRITON_INTERPRET",) if os.environ.get(name)}
    assert found[4] == "/tmp"
    assert found[5] > 0  # a session of its own: no terminal of the instructor
    assert found[6] == []
    monkeypatch.setenv("TRITON_INTERPRET", "yes")
    walls = sandbox.walls(Limits(file_bytes=77))
    at = walls.index("TRITON_INTERPRET")
    assert walls[at - 1 : at + 2] == ["--setenv", "TRITON_INTERPRET", "yes"]
    assert walls.count("77") == 2


def test_a_program_that_reads_no_more_orders(monkeypatch):
    """It stops itself after an answer. An order larger than a pipe holds must not wait for it."""
    monkeypatch.setattr(stand_in, "SECONDS", 45.0)
    with Sandbox(Limits(seconds=4)) as shut:
        ask(
            shut,
            """
            import signal, threading
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
            """,
        )
        time.sleep(1)
        began = time.monotonic()
        with pytest.raises(Failed, match="more than 4 seconds in all"):
            ask(shut, "return 3", "x" * 1_000_000)
        assert time.monotonic() - began < 30


MEMORY = {
    "of its own": "x = bytearray(1 << 30)",
    "in files without a name": "for k in range(10):\n    file = os.memfd_create(str(k))\n"
    "    for _ in range(100):\n        os.write(file, bytes(1 << 20))",
    "shared with nobody": "import mmap\nx = mmap.mmap(-1, 1 << 30)\nx.write(bytes(1 << 30))",
}


@pytest.mark.parametrize("where", MEMORY)
def test_too_much_memory(where):
    with (
        Sandbox(Limits(memory_bytes=900 << 20)) as shut,
        pytest.raises(Failed, match="used more than 900 MB of memory"),
    ):
        ask(shut, MEMORY[where] + "\nimport time\ntime.sleep(20)")


def test_too_many_processes():
    with (
        Sandbox(Limits(processes=12)) as shut,
        pytest.raises(Failed, match=r"^your function has started more than 12 processes$"),
    ):
        ask(
            shut,
            """
            import time
            for _ in range(14):
                if not os.fork():
                    time.sleep(60)
            time.sleep(20)
            """,
        )


def test_no_process_is_left():
    with Sandbox() as shut:
        assert (
            ask(
                shut,
                """
            for _ in range(3):
                if not os.fork():
                    os.setsid()
                    import time
                    time.sleep(100)
            return 3
            """,
            )
            == 3
        )
        assert os.getsid(shut.process.pid) == shut.process.pid
        family = psutil.Process(shut.process.pid).children(recursive=True)
        assert len(family) >= 4
    psutil.wait_procs(family, timeout=10)
    assert not [one for one in family if one.is_running()]
    assert shut.family() == []
    assert shut.process.stdin.closed
    assert shut.process.stdout.closed


def test_without_bubblewrap(monkeypatch):
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)
    monkeypatch.setenv("OWN", "kept")
    with pytest.raises(NotStarted, match="no sandbox"):
        Sandbox()
    with Sandbox(trusted=True) as shut:
        assert ask(shut, "open('x', 'w').close()\nreturn 3") == 3
        assert os.listdir(shut.folder.name) == ["x"]
        assert shut.family()[-1].pid == shut.process.pid
        assert ask(shut, "return os.environ['OWN'], os.environ['PYTHONPATH'], os.getcwd()") == (
            "kept", str(COURSE), shut.folder.name,
        )  # fmt: skip
        child = ask(shut, "import subprocess\nreturn subprocess.Popen(['sleep', '60']).pid")
        family = [psutil.Process(child)]
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert shut.process.stdin.closed
    assert shut.process.stdout.closed
    assert not os.path.exists(shut.folder.name)
