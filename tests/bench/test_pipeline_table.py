"""The table of the pipelines: our time over PyTorch's, and both peaks."""

from tests.bench import pipeline


def test_the_ratio_is_our_time_over_pytorchs():
    slowest = {pipeline.OURS: [0.1] * 4, pipeline.THEIRS: [0.2] * 4}
    peak = {pipeline.OURS: 2**20, pipeline.THEIRS: 3 * 2**20}
    report = pipeline.report([pipeline.row("1F1B", slowest, peak)])
    assert report.table[1] == [
        "1F1B", "100 ms", "200 ms", "0.50 (0.50–0.50)", "≤ 0.95", "1.0 MiB", "3.0 MiB"
    ]  # fmt: skip
