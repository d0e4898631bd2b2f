"""Open JupyterLab, so that no other user of this machine reads what kernels send.

    lab.py [JupyterLab's options]

A kernel sends code and outputs to every process that connects, and all users of a machine can
connect to its ports. So kernels use sockets in Jupyter's runtime folder, which only you can enter.
Where that folder can hold no sockets, kernels use ports, and encrypt. JupyterLab asks the network
for no news and no updates. What it saves has an explorer's picture, and not its sliders.
"""

import os
import socket
import sys
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

QUIET = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
SETTINGS = Path(__file__).resolve().parent / "jupyter"  # else its page asks whether to fetch news
SAVED = "--ContentsManager.pre_save_hook=helpers.plots.explorer.without_sliders"
SOCKETS = "--KernelManager.transport=ipc"
PORTS = "--MappingKernelManager.transport_encryption=auto"
LONGEST = f"kernel-{'0' * 36}-ipc-5"  # the name of a kernel's socket; systems limit the whole path


def holds_sockets(folder: Path) -> bool:
    """Make a folder that only this user can enter; return whether it can hold kernels' sockets."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            return False
        folder.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(folder / LONGEST))
        (folder / LONGEST).unlink()
    except OSError:  # too long a path, or a file system without sockets
        return False
    return True


def main(arguments: list[str]):
    sockets = holds_sockets(Path(jupyter_runtime_dir()))
    kernels = "use files that only you can open" if sockets else "encrypt what they send"
    print(f"Other users can reach JupyterLab's port, which asks for a token. Kernels {kernels}.")
    sys.stdout.flush()
    others = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(SETTINGS), others]))
    command = ["-m", "jupyterlab", *QUIET, SAVED, SOCKETS if sockets else PORTS, *arguments]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
