"""The project's scripts: killed again and again, by any launcher, the curve of one process.

`tests/check/submission/test_project_scripts.py` runs both scripts in all stages, and kills them.
Tolerance: 1e-12 absolute in float64; the sums over rows are added in another order.
"""

import json
import os
import random
import re
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from helpers.check.submission import job
from helpers.data.blocks import pack
from helpers.data.order import Order
from helpers.data.source import Source
from helpers.parallel.single import Single
from helpers.training.loop import train
from tests.check.submission.test_project_scripts import CONFIG, PLAIN, SIZES, changed
from tests.check.submission.warm import Warm
from tests.notebooks.project.hurt import FAULTS

SCRIPT = PLAIN.with_name("distributed.py")
SECONDS = float(os.environ.get("FAULT_SECONDS", 0))  # of faults under torchrun; 60: a minute
STEPS, LONG, KILLS = 80, int(80 + 4 * SECONDS), 20
UNFINISHED = "*.writing"  # a checkpoint that is being written, or was when its ranks were killed


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text"
    file.write_text(" ".join(random.Random(0).choices(["rank", "shard", "bucket", "loss"], k=4000)))
    return file


@pytest.fixture(scope="module")
def warm():
    with Warm() as server:
        yield server


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    """`distributed.py` with a smaller model."""
    return changed(tmp_path_factory.mktemp("script"), SCRIPT.name, CONFIG)


@pytest.fixture(scope="module")
def twin(text, script) -> dict[int, float]:
    """One process, trained by this course's loop on the same batches: step -> loss."""
    names = runpy.run_path(str(script), run_name="imported")
    torch.set_num_threads(1)
    blocks = pack([text.read_text()], names["CONFIG"].context)
    source = Source(blocks, Order(len(blocks), names["BATCH"], seed=0))
    one = Single(names["CONFIG"], 0, dtype=torch.float64, optimizer=names["OPTIMIZER"])
    history = train(one, source, steps=LONG, schedule=names["learning_rate"])
    return dict(enumerate(history.loss))


def killing(start, folder: Path, lines: int, after: float, *, saving: bool):
    """A `start` that kills the ranks by SIGKILL: so many seconds after so many lines, and, if
    `saving`, after the next checkpoint's folder is there."""

    def kill(process, out):
        while process.returncode is None:
            begun = Path(out).read_bytes().count(b"\n") >= lines  # the last life's part is gone
            if begun and (not saving or any(folder.glob(UNFINISHED))):
                time.sleep(after)
                try:
                    os.kill(process.pid, signal.SIGTERM)  # the server's agent kills its ranks
                except ProcessLookupError:
                    pass
                return
            time.sleep(0.003)

    def started(arguments, ranks, *, stdout, stderr):
        process = start(arguments, ranks, stdout=stdout, stderr=stderr)
        threading.Thread(target=kill, args=(process, stdout.name), daemon=True).start()
        return process

    return started


def whole(folder: Path) -> int:
    """The steps in the last whole checkpoint."""
    return max((int(path.name[5:]) for path in folder.glob("step-*[0-9]")), default=0)


@pytest.mark.timeout(900)
def test_twenty_kills_do_not_change_the_curve(tmp_path, warm, script, text, twin):
    """Each life begins where the last whole checkpoint ended, in another stage of ZeRO."""
    draw, folder, torn, ended = random.Random(0), tmp_path / "runs", 0, 0
    options = {"steps": STEPS, "folder": folder, "data": text, "dtype": "float64"}
    for life in range(KILLS + 1):
        first = whole(folder)
        lines, after, saving = draw.randint(1, 6), draw.uniform(0, 0.02), life % 2 == 0
        start = killing(warm.start, folder, lines, after, saving=saving)
        found = job.run(
            script, 2, options | {"stage": draw.randrange(4), "save_every": draw.randint(1, 4)},
            start=start if life < KILLS else warm.start,
        )  # fmt: skip
        assert found.first in (first, None), found.errors
        assert found.losses == {k: pytest.approx(twin[k], abs=1e-12) for k in found.losses}
        assert max([first, *found.saved]) <= whole(folder)
        torn += any(folder.glob(UNFINISHED))
        ended += found.code == 0
    assert not found.code, found.errors
    assert whole(folder) == STEPS
    assert ended < 5  # most lives were killed before their last step
    assert torn >= 3  # and some while they saved


@pytest.mark.timeout(900 + 3 * SECONDS)
def test_torchrun_restarts_after_faults_of_five_kinds(tmp_path, warm, text, twin):
    """A rank at random is hurt after a few steps; torchrun restarts all, from the last checkpoint.

    No signal of life for 5 s ends a rank that is stopped, or that holds Python's lock.
    """
    hurts = "import argparse", "import argparse\nfrom tests.notebooks.project.hurt import listen"
    quick = "max(launch(run, workers=", "listen() or max(launch(run, timeout=5.0, workers="
    script, folder = changed(tmp_path, SCRIPT.name, CONFIG, hurts, quick), tmp_path / "runs"
    orders = {"notes": str(tmp_path), "watch": str(folder), "kill_at_step": None}
    line = [json.dumps(orders | {"file_bytes": None}), str(script), "--dtype=float64"]
    line += [f"--data={text}", f"--folder={folder}", "--stage=3", "--save-every=4"]
    draw, began, steps, done, leave = random.Random(0), time.monotonic(), [], [], 4
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "errors", "w+") as errors:
        options = ["--max-restarts=1000", "--shutdown-timeout=1"]
        process = warm.torchrun(
            [*line, f"--steps={LONG}"], 2, stdout=out, stderr=errors, options=options
        )
        while (running := process.poll() is None) or (printed := out.readline()):
            if running and not (printed := out.readline()):
                time.sleep(0.01)
                continue
            row = json.loads(printed)
            if "step" not in row:
                continue
            assert row["loss"] == pytest.approx(twin[row["step"]], abs=1e-12)
            steps.append(row["step"])
            leave -= 1
            if leave == 0 and (len(done) < len(FAULTS) or time.monotonic() < began + SECONDS):
                if len(done) % len(FAULTS) == 0:
                    turn = draw.sample(sorted(FAULTS), len(FAULTS))
                time.sleep(draw.uniform(0, 0.01))
                ranks = psutil.Process(process.pid).children()
                done.append(turn[len(done) % len(FAULTS)])
                draw.choice(ranks).send_signal(FAULTS[done[-1]])
                leave = draw.randint(4, 8)  # the old life may print two of them
        assert process.wait() == 0, Path(errors.name).read_text()[-3000:]
    assert {*done} == {*FAULTS}
    assert {*steps} == {*range(LONG)}
    lost = len(steps) - LONG
    assert (
        0 < lost <= 6 * len(done)
    )  # 4 steps between checkpoints; a rank may be ahead of the other
    seconds = time.monotonic() - began
    print(f"{len(done)} faults, {lost} of {len(steps)} steps lost, {seconds:.0f} s")


def test_without_a_launcher(tmp_path, script, text, twin, monkeypatch, capsys):
    """`launch` starts two ranks, as under `accelerate launch` on a CPU: see test_scripts.py."""
    line = [str(script), "--dtype=float64", f"--data={text}", f"--folder={tmp_path}", "--stage=2"]
    monkeypatch.setattr(sys, "argv", [*line, "--steps=3"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [json.loads(row[row.index("{") :]) for row in printed if "{" in row]
    losses = {row["step"]: row["loss"] for row in rows if "step" in row}
    assert losses == {k: pytest.approx(twin[k], abs=1e-12) for k in range(3)}
    assert {row["rank"] for row in rows if "rank" in row} == {0, 1}


def noticing(process, out):
    """Send SIGTERM to one rank of torchrun after three lines."""
    while process.returncode is None and Path(out).read_bytes().count(b"\n") < 3:
        time.sleep(0.001)
    psutil.Process(process.pid).children()[-1].terminate()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "smaller", "stage", "steps"),
    [(SCRIPT.name, CONFIG, 3, 80), (PLAIN.name, SIZES, 1, 40)],
)
def test_sigterm_is_a_notice_and_a_changed_byte_is_refused(
    tmp_path, warm, text, name, smaller, stage, steps
):
    """A rank gets SIGTERM: all ranks save and leave, and the next run goes on, bit for bit."""
    script, folder, outs = changed(tmp_path, name, smaller), tmp_path / "kept", []
    options = {"steps": steps, "stage": stage, "data": text, "dtype": "float64"}
    options["save_every"] = steps

    def by_torchrun(arguments, ranks, *, stdout, stderr):
        process = warm.torchrun(arguments, ranks, stdout=stdout, stderr=stderr)
        threading.Thread(target=noticing, args=(process, stdout.name), daemon=True).start()
        return process

    def start(arguments, ranks, *, stdout, stderr):
        outs.append(Path(stdout.name))
        return warm.start(arguments, ranks, stdout=stdout, stderr=stderr)

    straight = job.run(script, 2, options | {"folder": tmp_path / "one"}, start=start)
    left = job.run(script, 2, options | {"folder": folder}, start=by_torchrun)
    saved = whole(folder)
    assert left.code, left.errors
    codes = re.findall(r"exitcode *: (-?\d+)", left.errors)
    assert "143" in codes
    assert {*codes} <= {"143", "-15"}  # torchrun ends a rank that is already leaving
    assert (left.saved, 3 <= saved < steps) == ([saved], True), left.errors
    again = job.run(script, 2, options | {"folder": folder}, start=start)
    assert (again.code, again.first) == (0, saved), again.errors
    assert left.losses | again.losses == straight.losses
    file = max(folder.glob("step-*/*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    # Rank 0 has the reason, and may be slow to say it: the end of the others must wait for it.
    late = "import time; time.sleep(int(os.environ['RANK'] == '0')); say(refused"
    script.write_text("import os\n" + script.read_text().replace("say(refused", late))
    refused = job.run(script, 2, options | {"folder": folder}, start=start)
    (reason,) = [line["refused"] for line in job.lines_of(outs[-1])]
    assert reason.startswith(f"{file} ")
    assert refused.code
    assert not refused.losses
    (report,) = [line for line in job.lines_of(outs[1]) if "tokens_per_second" in line]
    most = report["peak_bytes"]
    assert 0 < 2 * report["per_rank"] <= report["tokens_per_second"]
    assert {kind: most[kind] for kind in again.held[0]} == again.held[0]
    assert most["all"] > sum(again.held[0].values())
