"""What another user of the machine sees of kernels: of `make lab`, of nbval, of `make course`."""

import json
import os
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

import nbval.kernel
import psutil
import pytest
import zmq
from jupyter_client import BlockingKernelClient
from jupyterlab import NeverCheckForUpdate
from jupyterlab.labapp import LabApp
from nbformat.v4 import new_code_cell, new_notebook

from tests import share
from tests.browser.lab import copy_course, serving
from tests.conftest import ci
from tests.runtime.strangers import NOBODY, stranger

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
SECONDS = 3.0  # in which the kernel sends, and the stranger listens


@pytest.fixture(scope="module")
def lab():
    return ci("lab")


def test_jupyterlab_asks_for_no_news_and_no_updates(lab):
    app = LabApp()
    app.parse_command_line(list(lab.QUIET))
    assert app.news_url is None
    assert app.check_for_updates_class is NeverCheckForUpdate


@pytest.mark.parametrize(
    ("name", "mode", "owner", "holds"),
    [
        ("new", None, None, True),
        ("open", 0o755, None, True),
        ("l" * 100, None, None, False),
        pytest.param("another's", 0o777, NOBODY, False, marks=root_only),
    ],
)
def test_a_folder_for_sockets_is_the_user_s_alone(lab, short, name, mode, owner, holds):
    folder = short / name
    if mode:
        folder.mkdir()
        folder.chmod(mode)
    if owner:
        os.chown(folder, owner, owner)
    assert lab.holds_sockets(folder) == holds
    assert not list(folder.iterdir())
    if holds:
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def short():
    """A folder with a short path: a socket's path has about a hundred bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(params=["sockets", "ports"])
def server(request, short, tmp_path, monkeypatch):
    """The address, the token and the runtime folder of a JupyterLab, with either way to kernels."""
    private = short
    if request.param == "ports":
        private = short / ("l" * 100)
        private.mkdir()
    with serving(copy_course(tmp_path / "course"), private) as (address, token):
        yield request.param, address, token, private / "jupyter_runtime_dir"
    assert not list((private / "jupyter_runtime_dir").glob("kernel-*"))  # it cleans up


def ask(address: str, token: str, path: str = ""):
    """Send a request for kernels to JupyterLab."""
    request = Request(f"{address}/api/kernels{path}", method="POST", data=b"{}")
    request.add_header("Authorization", f"token {token}")
    return json.loads(urlopen(request, timeout=60).read())["id"]


def overhear(endpoint: str, ready: int):
    """Subscribe to what a kernel sends to all, without a key; write a byte for each message."""
    with zmq.Context() as context, context.socket(zmq.SUB) as line:
        line.subscribe(b"")
        line.connect(endpoint)
        while True:
            line.recv_multipart()
            os.write(ready, b"!")


def talk(file: Path) -> list[str]:
    """As the kernel's user, have it print for a while; return what it printed."""
    client, heard = BlockingKernelClient(connection_file=str(file)), []
    client.load_connection_file()
    client.hb_channel.time_to_dead = 60.0  # on a busy machine, a second of silence is no death
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            client.execute_interactive(
                "print('private')", timeout=60, output_hook=lambda m: heard.append(m["msg_type"])
            )
            time.sleep(0.1)
    finally:
        client.stop_channels()
    return [kind for kind in heard if kind == "stream"]


def test_a_second_user_reads_nothing_of_a_kernel(server, tmp_path):
    way, address, token, folder = server
    name = ask(address, token)
    file = folder / f"kernel-{name}.json"
    ask(address, token, f"/{name}/restart")
    connection = json.loads(file.read_text())
    between = ":" if connection["transport"] == "tcp" else "-"
    where = f"{connection['ip']}{between}{connection['iopub_port']}"
    read, write = os.pipe()
    os.set_blocking(read, False)
    with stranger(overhear, f"{connection['transport']}://{where}", write):
        assert talk(file)
    os.write(write, b".")
    if os.geteuid() == 0:  # otherwise the stranger is this user
        assert os.read(read, 1 << 16) == b"."
    (kernel,) = [
        p for p in psutil.process_iter(["cmdline"]) if str(file) in (p.info["cmdline"] or [])
    ]
    ports = [c for c in kernel.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert file.stat().st_mode & 0o077 == 0
    if way == "ports":
        assert len(ports) > 5  # one for each channel, too
    else:
        assert len(ports) == 1  # ipykernel's own: it takes prints of forks, and sends nothing
        assert folder.stat().st_mode & 0o777 == 0o700
    if os.geteuid():
        pytest.skip("only root can become another user, and listen to the kernel")


def test_kernels_of_nbval_and_of_make_course_encrypt(tool, tmp_path):
    share.pytest_configure(None)
    kernel = nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME, str(tmp_path))
    try:
        assert kernel.km.curve_secretkey
    finally:
        kernel.stop()
    look = "import ipykernel as i; assert 'curve_secretkey' in i.get_connection_info(unpack=True)"
    tool.run(new_notebook(cells=[new_code_cell(look)]), tmp_path / "look.ipynb")
