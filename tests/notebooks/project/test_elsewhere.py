"""What one would submit elsewhere: each file's own commands start the project's script here.

No Slurm is needed, no Kubernetes and no cloud. `srun`, `scancel` and `scontrol` are stand-ins: they
do what the file relies on. The notice is real: a signal to the process that would get it there.
"""

import json
import random
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.check.submission.test_project_scripts import CONFIG, SCRIPTS, changed
from tests.runtime.joined.machines import BIN, end, finish, one_machine

ELSEWHERE = SCRIPTS / "elsewhere"
ROOT = SCRIPTS.parents[1]
SLURM, KUBERNETES, SKYPILOT = (
    ELSEWHERE / name for name in ("slurm.sbatch", "kubernetes.yaml", "skypilot.yaml")
)
TOOLS = ROOT / "build" / "elsewhere" / "bin"
needs_tools = pytest.mark.skipif(
    not (TOOLS / "python").exists(), reason="`make elsewhere` installs what this runs"
)
STEPS = 400  # more than the ranks do before the notice reaches them
STAND_INS = {
    "srun": """
        while [[ $1 == --* ]]; do shift; done
        export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1
        export SLURM_STEP_NODELIST=localhost
        for rank in 0 1; do
            (until [ -s pids ]; do sleep 0.01; done  # a notice may come with the first step
            SLURM_PROCID=$rank SLURM_LOCALID=$rank exec "$@") & pids+=($!)
        done
        echo ${pids[@]} > pids
        for pid in ${pids[@]}; do wait $pid; code=$?; ((code > highest)) && highest=$code; done
        exit $((highest))""",
    "scancel": "echo scancel $* >> orders; kill -TERM $(cat pids)",
    "scontrol": "echo scontrol $* >> orders",
    "torchrun": 'printf "%s\\n" "$@"',
}


@pytest.fixture(scope="module")
def machine():
    machine = one_machine()
    yield machine
    machine.close()


@pytest.fixture
def folder(tmp_path):
    """A folder with the script, whose model is smaller, and a text."""
    changed(tmp_path, "distributed.py", CONFIG).rename(tmp_path / "distributed.py")
    words = random.Random(0).choices(["rank", "shard", "bucket", "loss"], k=4000)
    (tmp_path / "text").write_text(" ".join(words))
    return tmp_path


def stand_in(folder: Path, *names, **own) -> str:
    """Write these stand-ins, and own ones; return the PATH that has them in front."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, source in ({name: STAND_INS[name] for name in names} | own).items():
        (programs / name).write_text(f"#!/bin/bash\n{source}\n")
        (programs / name).chmod(0o755)
    return f"{programs}:{BIN}:/usr/bin:/bin"


def rows(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def after_steps(process, count: int) -> str:
    """Read until so many steps are printed; return what was read."""
    read = ""
    for line in process.stdout:
        read += line
        if len([row for row in rows(read) if "step" in row]) == count:
            return read
    raise AssertionError(read)


def slurm(machine, folder, *options):
    """Start the file as Slurm's batch shell."""
    path = stand_in(folder, "srun", "scancel", "scontrol")
    variables = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "1", "PATH": path}
    return machine.start("env", "-C", folder, "bash", SLURM, *options, **variables)


def orders(folder: Path) -> list[str]:
    """What the file told Slurm."""
    file = folder / "orders"
    return file.read_text().splitlines() if file.exists() else []


NOTICE, AGAIN = "scancel --signal=TERM 77", "scontrol requeue 77"


def test_slurm(machine, folder):
    """USR1 to the batch shell: the ranks save, and the job goes back into the queue."""
    subprocess.run(["bash", "-n", SLURM], check=True)
    options = ["--stage=3", "--data=text", f"--steps={STEPS}", f"--folder={folder / 'kept'}"]
    job = slurm(machine, folder, *options)
    try:
        begun = after_steps(job, 3)
        job.send_signal(signal.SIGUSR1)
        output = begun + finish(job)
    finally:
        end(job)
    assert job.returncode == 128 + signal.SIGTERM, output
    assert orders(folder) == [NOTICE, AGAIN]
    (saved,) = [row["saved"] for row in rows(output) if "saved" in row]
    assert [path.name for path in (folder / "kept").iterdir()] == [f"step-{saved:08}"]


UNTIL = """trap 'exit {}' TERM; echo '{{"step": 0}}'; while :; do sleep 0.05; done"""


@pytest.mark.parametrize(
    ("rank", "noticed", "code", "told"),
    [
        ("exit 0", False, 0, []),
        ("exit $((2 + SLURM_PROCID))", False, 3, []),  # a mistake would fail again
        (UNTIL.format(143), True, 143, [NOTICE, AGAIN]),
        (UNTIL.format(0), True, 0, [NOTICE]),  # it was in its last step
    ],
)
def test_slurm_queues_a_job_again_only_after_a_notice(machine, folder, rank, noticed, code, told):
    stand_in(folder, python=rank)
    job = slurm(machine, folder)
    try:
        if noticed:
            after_steps(job, 2)
            job.send_signal(signal.SIGUSR1)
        output = finish(job)
    finally:
        end(job)
    assert (job.returncode, orders(folder)) == (code, told), output


def test_kubernetes_is_one_job_whose_pods_find_each_other():
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = dict(re.findall(r"--([\w-]+)=(\S+)", " ".join(container["args"])))
    name, host = job["metadata"]["name"], words["master-addr"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert host == f"{name}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert int(words["nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(words["nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert 30 < int(words["shutdown-timeout"]) < pod["terminationGracePeriodSeconds"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert Path(mounts["checkpoints"]) in Path(words["folder"]).parents


@pytest.mark.timeout(300)
def test_kubernetes_passes_the_notice_of_one_pod_to_both(machine, folder):
    """Two pods on this machine, a rank each: SIGTERM to the first process of the second one."""
    *_, job = yaml.safe_load_all(KUBERNETES.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    line = "\n".join([*container["command"], *container["args"]])
    for there, here in (("=8", "=1"), ("distributed-0.distributed", "127.0.0.1")):
        assert line.count(there) == 1
        line = line.replace(there, here)
    own = ["--data=text", f"--steps={STEPS}", f"--folder={folder / 'kept'}"]
    pods = [
        machine.start(
            "env", "-C", folder,
            *line.replace("$(JOB_COMPLETION_INDEX)", str(index)).split("\n"), *own,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        output = after_steps(pods[0], 3)
        pods[1].send_signal(signal.SIGTERM)
        outputs = [output + finish(pods[0]), finish(pods[1])]
    finally:
        for pod in pods:
            end(pod)
    saved = [row["saved"] for row in rows(outputs[0]) if "saved" in row]
    assert saved, outputs
    assert (folder / "kept" / f"step-{saved[-1]:08}").is_dir()
    assert {*re.findall(r"exitcode *: (-?\d+)", outputs[0])} == {"143"}, outputs
    assert all(pod.returncode for pod in pods)  # so the Job starts both again


def test_skypilot_gives_torchrun_what_the_machine_has(folder):
    task = yaml.safe_load(SKYPILOT.read_text())
    assert {"name", "resources", "setup", "run", "workdir", "num_nodes", "file_mounts"} == set(task)
    (folder / "notebooks/project").mkdir(parents=True)
    found = subprocess.run(
        ["bash", "-euc", task["run"]], cwd=folder, check=True, capture_output=True, text=True,
        env={
            "PATH": stand_in(folder, "torchrun"), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n",
            "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        },
    )  # fmt: skip
    launcher, script = found.stdout.split("distributed.py\n")
    assert launcher.split() == [
        "--nnodes=2", "--node-rank=1", "--nproc-per-node=8", "--master-addr=10.0.0.1",
        "--master-port=29500",
    ]  # fmt: skip
    check_options(script.split())
    folder = shlex.split(script)[-1].removeprefix("--folder=")
    assert Path(folder).parent == Path(*task["file_mounts"])


def check_options(words):
    """The script has these options."""
    known = set(re.findall(r'add_argument\("(--[\w-]+)"', (SCRIPTS / "distributed.py").read_text()))
    assert {word.split("=")[0] for word in words} <= known


@needs_tools
def test_kubernetes_knows_every_field():
    """By the schema of each kind; a word that is not in it is an error."""
    line = [TOOLS / "kubernetes-validate", "--strict"]
    subprocess.run([*line, KUBERNETES], check=True)
    wrong = KUBERNETES.read_text().replace("completionMode:", "completionsMode:")
    told = subprocess.run([*line, "-"], input=wrong, capture_output=True, text=True)
    assert told.returncode
    assert "completionsMode" in told.stderr + told.stdout


def container(folder: Path, name: str, **arguments) -> Path:
    """The folder that SageMaker's container has as /opt/ml, for one host with two GPUs."""
    base, source = folder / name, folder / "source"
    source.mkdir(exist_ok=True)
    shutil.copy(folder / "distributed.py", source)
    (base / "input/config").mkdir(parents=True)
    (base / "input/data/text").mkdir(parents=True)
    shutil.copy(folder / "text", base / "input/data/text")
    arguments |= {"folder": f"{base}/checkpoints", "data": f"{base}/input/data/text/text"}
    arguments |= {"sagemaker_program": "distributed.py", "sagemaker_submit_directory": f"{source}"}
    host = {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo"}
    for file, content in {
        "hyperparameters": {key: json.dumps(value) for key, value in arguments.items()},
        "inputdataconfig": {"text": {"TrainingInputMode": "File"}},
        "resourceconfig": host,
    }.items():
        (base / "input/config" / f"{file}.json").write_text(json.dumps(content))
    return base


TOOLKIT = """
from sagemaker_training import entry_point, environment, runner
env = environment.Environment()
program = env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars()
entry_point.run(*program, runner_type=runner.RunnerType.TorchDistributed)
"""


@needs_tools
def test_sagemaker_s_own_toolkit_goes_on_from_the_copied_checkpoints(machine, folder):
    """AWS's package starts torchrun on two ranks, which are then killed without a notice."""
    path = stand_in(folder, **{"nvidia-smi": "printf 'GPU 0\\nGPU 1\\n'"})

    def start(base):
        variables = {"SAGEMAKER_BASE_DIR": str(base), "PYTHONUNBUFFERED": "1", "PATH": path}
        return machine.start(TOOLS / "python", "-c", TOOLKIT, **variables)

    first = start(container(folder, "one", stage=3, steps=STEPS, **{"save-every": 2}))
    try:
        after_steps(first, 5)
    finally:
        end(first)
    saved = max(int(path.name[5:]) for path in folder.glob("one/checkpoints/step-*[0-9]"))
    second = container(folder, "two", stage=3, steps=saved + 3)
    shutil.copytree(folder / "one/checkpoints", second / "checkpoints")
    again = start(second)
    output = finish(again)
    assert again.returncode == 0, output
    assert [row["step"] for row in rows(output) if "step" in row] == [saved, saved + 1, saved + 2]
    assert {row["rank"] for row in rows(output) if "rank" in row} == {0, 1}
