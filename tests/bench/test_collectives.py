"""The benchmark of collectives runs: two rounds of small buffers. No timing decides a test."""

import pytest

from helpers.runtime.cluster import Cluster
from tests.bench import collectives
from tests.bench.charts import drawn, written
from tests.bench.steps import slowest

PLAIN = [name for name in collectives.CONTENDERS if name != collectives.MPI]


@pytest.fixture(scope="module")
def samples():
    with Cluster(2) as cluster:
        runs = list(cluster.run(collectives.blocks, nbytes=4096, calls=2, rounds=2))
    every = {name: slowest([run[name] for run in runs], list(runs[0][name])) for name in runs[0]}
    return runs, every


def test_a_block_has_ended_when_it_has_on_every_rank(samples):
    runs, every = samples
    assert tuple(every) == collectives.COLLECTIVES
    for name, by_contender in every.items():
        contenders = [one for one in PLAIN if one != collectives.SPINNING or name == "all_reduce"]
        assert list(by_contender) == contenders
        for contender, times in by_contender.items():
            assert times == [max(run[name][contender][i] for run in runs) for i in (0, 1)]
            assert min(times) > 0


def test_the_report_and_its_drawing(samples, tmp_path):
    _, every = samples
    report = collectives.report({(name, 2**20, 2): times for name, times in every.items()})
    assert len(report.table) == 1 + len(every)
    assert len(written(report, tmp_path)) == len(every) * len(PLAIN) - 2
    assert drawn("collectives", tmp_path).axes
