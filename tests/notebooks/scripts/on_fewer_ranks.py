"""Run MPI scripts on 1, 2, … ranks of one mpiexec: mpiexec -n N python on_fewer_ranks.py SCRIPT …

Each run is given the first ranks as its world; the other ranks wait. So Python and torch start once
on each rank. A line of JSON in what a script prints becomes [SCRIPT, the line].
"""

import contextlib
import io
import json
import runpy
import sys
import time
from pathlib import Path

from mpi4py import MPI

everyone = MPI.COMM_WORLD
for script in sys.argv[1:]:
    for ranks in range(1, everyone.size + 1):
        MPI.COMM_WORLD = everyone.Split(color=int(everyone.rank < ranks), key=everyone.rank)
        if everyone.rank < ranks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                runpy.run_path(script, run_name="__main__")
            if everyone.rank == 0:
                rows = [json.loads(line) for line in printed.getvalue().splitlines()]
                print(json.dumps([Path(script).name, rows]), flush=True)
        else:
            assert MPI.COMM_WORLD.size == everyone.size - ranks
        there = everyone.Ibarrier()
        while not there.Test():  # MPI's own waiting would take a core from those that work
            time.sleep(0.01)
