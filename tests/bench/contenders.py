"""The launchers side by side: what stands in the notebook's cells for each of them."""

from dataclasses import dataclass
from pathlib import Path

WORK = Path(__file__).with_name("work.py").read_text()
LIMIT = 1800  # seconds a collective may take, where no fault is expected: PyTorch's own default


@dataclass(frozen=True)
class Contender:
    """One launcher.

    Attributes:
        imports: the first cell.
        define: the cell with the functions.
        warm: a cell before later calls; RANKS stands for their number.
        call: the cell that runs `{fn}(*{args})` on `{ranks}` ranks; `{limit}` in seconds.
    """

    name: str
    imports: str
    define: str
    warm: str
    call: str

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
    # The first optimizer of a process imports torch._dynamo, for seconds; forked ranks inherit it.
    "import torch._dynamo",
    "notebook_launcher(forked, args=({limit}, {fn}, {args}), num_processes={ranks},"
    " use_port=str(free_port()))",
)
# Its own pace is to look every 0.1 s whether the ranks have ended.
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

GIVEN = """\
Every launcher runs the same functions, on gloo over the loopback interface, with one thread a rank.
The first line of our notebooks, and so of the kernels here, is `from helpers import launch`: it
starts the server, which imports torch while the notebook does.
`mp.spawn` cannot take a function from a cell: its functions stand in a module of their own.
`notebook_launcher` forks the notebook, so it is refused once CUDA was used, and it returns nothing.
It gets a free port for each call, and for later calls a notebook that has imported `torch._dynamo`,
which the first optimizer of a process needs; *eager* is the same with `monitor_interval=0.01` in
place of 0.1 s."""
