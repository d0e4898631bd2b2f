"""The launchers to compare, and the notebook cells for each of them."""

from dataclasses import dataclass, replace
from pathlib import Path

WORK = Path(__file__).with_name("work.py").read_text()
LIMIT = 1800  # seconds: a collective's timeout without a fault, PyTorch's own default


@dataclass(frozen=True)
class Contender:
    """One launcher.

    Attributes:
        imports: the first cell.
        define: the cell with the functions.
        warm: a cell before later calls. RANKS is replaced by the number of ranks.
        call: the cell that runs `{fn}(*{args})` on `{ranks}` ranks; `{limit}` is in seconds.
        bytecode: keep compiled modules? Without, each process compiles what it imports.
    """

    name: str
    imports: str
    define: str
    warm: str
    call: str
    bytecode: bool = True

    def cell(self, fn: str, ranks: int, args: tuple = (), limit: float = LIMIT) -> str:
        return self.call.format(fn=fn, ranks=ranks, args=args, limit=limit)


TORCH = "import torch\nimport torch.distributed as dist\n"

LAUNCH = Contender(
    "launch",
    "from helpers import launch\n" + TORCH,
    WORK + "\n\ndef on_rank(worker, work, args):\n    return work(*args)\n",
    "",
    "launch(on_rank, workers={ranks}, timeout={limit}, work={fn}, args={args})",
)
NO_BYTECODE = replace(LAUNCH, name="launch, no bytecode", bytecode=False)
CLUSTER = Contender(
    "Cluster",
    "from helpers import Cluster\n" + TORCH,
    LAUNCH.define,
    "cluster = Cluster(workers=RANKS)",
    "cluster.run(on_rank, timeout={limit}, work={fn}, args={args})",
)
ACCELERATE = Contender(
    "notebook_launcher",
    TORCH + "from accelerate import notebook_launcher",
    WORK,
    # A process's first optimizer imports torch._dynamo, which takes seconds. Forked ranks inherit
    # the import.
    "import torch._dynamo",
    "notebook_launcher(forked, args=({limit}, {fn}, {args}), num_processes={ranks},"
    " use_port=str(free_port()))",
)
# By default it checks every 0.1 s whether the ranks have ended.
ACCELERATE_EAGER = Contender(
    "notebook_launcher, eager",
    ACCELERATE.imports,
    ACCELERATE.define,
    ACCELERATE.warm,
    ACCELERATE.call[:-1] + ", monitor_interval=0.01)",
)
SPAWN = Contender(
    "mp.spawn",
    TORCH + "import torch.multiprocessing as mp\nfrom tests.bench import work\n"
    "from tests.bench.work import *",
    "",
    "",
    "mp.spawn(work.spawned, args=({ranks}, work.free_port(), {limit}, work.{fn}, {args}),"
    " nprocs={ranks})",
)
# Python's own server, which imports PyTorch once and forks itself for each rank.
FORK_SERVER = Contender(
    "forkserver",
    SPAWN.imports + "\nmp.set_forkserver_preload(['tests.bench.work'])",
    "",
    ACCELERATE.warm,
    SPAWN.call.replace("mp.spawn(", "mp.start_processes(")[:-1] + ", start_method='forkserver')",
)

GIVEN = """\
Every launcher runs the same functions, on gloo over the loopback interface, with one thread per
rank. The kernels here start, like our notebooks, with `from helpers import launch`. This line
starts the server, which imports torch at the same time as the notebook.
`mp.spawn` and `forkserver` (`torch.multiprocessing.start_processes` by Python's own fork server,
which has imported PyTorch and the functions) cannot run a function from a cell, so their functions
are in a module. *No bytecode*: the kernel has `PYTHONDONTWRITEBYTECODE=1`.
`notebook_launcher` forks the notebook, so it fails after the notebook has used CUDA, and it returns
no values. Here it gets a free port for each call. For later calls, its notebook has imported
`torch._dynamo`, which a process's first optimizer needs. *eager* is the same launcher with
`monitor_interval=0.01` instead of 0.1 s."""
