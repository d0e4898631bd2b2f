"""What submitted code can reach from its sandbox, and what it can do to it."""

import errno
import os
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from helpers.check.elsewhere import Failed
from helpers.check.grading import plain, sandbox
from helpers.check.grading.sandbox import COURSE, Limits, NotStarted, Sandbox
from helpers.check.grading.stand_in import Shut, StandIn
from tests.check.grading.conftest import NEEDS_SANDBOX

pytestmark = NEEDS_SANDBOX


@pytest.fixture(scope="module")
def shut():
    """A sandbox. Tests that end it, or what it may start, come last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OWN_TOKEN", "the instructor's")
        with Sandbox() as shut:
            yield shut


@pytest.fixture
def inside(shut):
    """inside(body, *arguments): what a function with this body returns in the sandbox."""
    return lambda body, *given: ask(shut, body, *given)


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


def test_too_much_memory(shut):
    """Of its own, in files without a name, and shared with nobody: two of them would be allowed."""
    shut.limits = Limits(memory_bytes=1250 << 20)
    with pytest.raises(Failed, match="used more than 1,250 MB of memory"):
        ask(
            shut,
            """
            import mmap, time
            files = [os.memfd_create(name) for name in "xy"]  # a file has at most 256 MB
            for place in range(400):
                os.write(files[place % 2], bytes(1 << 20))
            shared = mmap.mmap(-1, 400 << 20)
            shared.write(bytes(400 << 20))
            own = bytearray(400 << 20)
            time.sleep(20)
            """,
        )
    assert shut.process.returncode is not None


def test_too_many_processes_and_none_is_left():
    with Sandbox(Limits(processes=12)) as shut:
        children = """
            import time
            for _ in range(given[0]):
                if not os.fork():
                    os.setsid()
                    time.sleep(60)
            """
        ask(shut, children, 3)
        assert os.getsid(shut.process.pid) == shut.process.pid
        family = psutil.Process(shut.process.pid).children(recursive=True)
        assert len(family) >= 4
        with pytest.raises(Failed, match=r"^your function has started more than 12 processes$"):
            ask(shut, children + "time.sleep(20)", 11)
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
