"""A JupyterLab of its own, on a copy of the course, and what a student does in it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.conftest import ROOT

COPIED = ("notebooks", "figures", "helpers", ".ci", "Makefile", "pyproject.toml", "README.md")
SKIPPED = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
OPEN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
# The status that the page shows is also idle before there is a kernel.
IDLE = """() => {
    const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
# Collects in window.shown what bars and curves show from now on, at every change: on a busy machine
# a timer comes too late for most of them.
WATCH = """(within) => {
  window.shown = {widths: new Set(), pictures: new Set()};
  const look = () => {
    for (const bar of document.querySelectorAll(`${within} div[style*="16em"] > div`)) {
      window.shown.widths.add(bar.style.width);
      for (const picture of bar.closest(".jp-OutputArea").querySelectorAll("img"))
        window.shown.pictures.add(picture.src);
    }
  };
  const all = {subtree: true, childList: true, attributes: true, attributeFilter: ["src", "style"]};
  new MutationObserver(look).observe(document.body, all);
}"""
START = 120  # seconds until the server answers
LONG = 240_000  # milliseconds that cells may run while other tests do


def copy_course(folder: Path) -> Path:
    """Copy the course, and make a student's folder work/ in the copy. Return the copy."""
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=SKIPPED)
        else:
            shutil.copy2(ROOT / name, folder / name)
    for program in (["student.py"], ["start.py", "work"]):  # make student
        line = [sys.executable, folder / ".ci" / program[0], *program[1:]]
        subprocess.run(line, cwd=folder, check=True, capture_output=True)
    return folder


def command(folder: Path, lab: str, at: str = "notebooks") -> str:
    """Return the very command of `make lab AT=at LAB=lab`, for the Python that runs the tests."""
    options = [f"PY={sys.executable}", f"LAB={lab}", f"AT={at}"]
    # setup counts as done: the libraries are those that the tests use
    make = ["make", "--dry-run", "--old-file=setup", "--old-file=.venv/installed", "lab", *options]
    done = subprocess.run(make, cwd=folder, check=True, capture_output=True, text=True)
    return next(line for line in done.stdout.splitlines() if ".ci/lab.py" in line)


@contextmanager
def serving(folder: Path, private: Path):
    """Run JupyterLab on a copy of the course; give its address, with its token.

    Args:
        folder: the copy.
        private: a folder in place of the user's settings, of Jupyter and of IPython.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    token = secrets.token_hex(16)
    lab = f"--no-browser --ServerApp.port={port} --ServerApp.port_retries=0 --allow-root"
    lab += f" --IdentityProvider.token={token} --LabApp.expose_app_in_browser=True"
    places = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    # JUPYTERLAB_SETTINGS_DIR and JUPYTERLAB_WORKSPACES_DIR have no underscore before LAB
    names = [f"JUPYTER_{place}".replace("JUPYTER_LAB", "JUPYTERLAB") for place in places]
    environ = {
        **os.environ,
        **{name: str(private / name.lower()) for name in names},
        "IPYTHONDIR": str(private / "ipython"),
        "JUPYTER_PREFER_ENV_PATH": "1",  # as the Makefile
        "PYTHONPATH": str(folder),
    }
    with (private / "log.txt").open("w") as log:
        server = subprocess.Popen(
            ["bash", "-c", f"exec env {command(folder, lab)}"],
            cwd=folder,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            answers(server, f"http://127.0.0.1:{port}/api", private / "log.txt")
            yield f"http://127.0.0.1:{port}", token
        finally:
            server.send_signal(signal.SIGTERM)  # it ends its kernels first
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def answers(server, address: str, log: Path):
    """Wait until the server answers; raise if it ends, or does not start in time."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            urlopen(address, timeout=5).read()
            return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text()[-3000:]}")


class Notebook:
    """A notebook that is open in JupyterLab.

    JupyterLab keeps only the cells in and near the window on the page: so a cell is brought there
    first, by `cell`.
    """

    def __init__(self, page):
        self.page = page
        page.locator(f"{OPEN} .jp-Cell").first.wait_for(timeout=LONG)
        # JupyterLab asks which kernel to use if a cell is run before there is one
        self.idle()

    @classmethod
    def open(cls, page, address: str, path: str):
        """Open a notebook by its address, and nothing that was open before; wait for its kernel."""
        page.goto(f"{address[0]}/lab/tree/{path}?reset&token={address[1]}")
        return cls(page)

    def cell(self, number: int):
        """Scroll to a cell, make it the active cell, and return its place."""
        self.page.evaluate(
            """async number => {
                const notebook = jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = number;
                notebook.deselectAll();
                await notebook.scrollToItem(number, 'start');
            }""",
            number,
        )
        cell = self.page.locator(
            f"{OPEN} .jp-Notebook .jp-Cell[data-windowed-list-index='{number}']"
        )
        cell.wait_for()
        return cell

    def run(self, number: int):
        """Run a cell, as Ctrl+Enter does; do not wait for it. Return its place."""
        cell = self.cell(number)
        self.page.evaluate("jupyterapp.commands.execute('notebook:run-cell')&&0")
        return cell

    def menu(self, *names: str):
        """Click through the menu: menu("Run", "Run All Cells")."""
        self.page.locator("#jp-MainMenu .lm-MenuBar-itemLabel", has_text=names[0]).first.click()
        for name in names[1:]:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(name, exact=True).click()

    def idle(self):
        """Wait until the kernel is idle."""
        self.page.wait_for_function(IDLE, timeout=LONG)

    def ran(self, number: int):
        """Wait until a cell has run."""
        self.page.wait_for_function(
            "n => jupyterapp.shell.currentWidget.content.widgets[n]?.model.executionCount",
            arg=number,
            timeout=LONG,
        )
        self.idle()

    def saved(self):
        """Save the notebook by the menu's command."""
        self.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
