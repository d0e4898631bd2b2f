"""Train with the project's script on SageMaker, on a spot instance with eight GPUs.

    pip install "sagemaker>=3"
    python sagemaker_submit.py --role ARN --image URI --text s3://bucket/text --run s3://bucket/run

This is AWS's present SDK, version 3: its `ModelTrainer` replaces the `Estimator` of version 2, which
older code and Accelerate's own SageMaker mode still import.

SageMaker copies the folder --text to the instance, as a **channel**, and names it in SM_CHANNEL_TEXT. It
copies /opt/ml/checkpoints to --run while the training writes there. After an interruption it copies
it back to a new instance, and starts the same command again: until the job has taken two days,
waiting included (`max_wait_time_in_seconds`).

When SageMaker stops a job, it sends SIGTERM to the container's first process, and SIGKILL 120 seconds
later (`StoppingCondition` in AWS's reference). With the SDK's own `Torchrun(…)` that process is a shell,
which passes no signal on: the command here replaces it by torchrun. The reference promises no signal
for an interrupted spot instance, so --save-every limits the lost work.
"""

import argparse
from pathlib import Path

from sagemaker.core.training.configs import (
    CheckpointConfig,
    Compute,
    InputData,
    SourceCode,
    StoppingCondition,
)
from sagemaker.train import ModelTrainer

COURSE = Path(__file__).resolve().parents[3]
LEFT_OUT = [".git", ".venv", "build", "work", "figures", "tests", "__pycache__"]
DAY = 86_400  # seconds
# On GPUs `accelerate launch` may stand in place of torchrun: it starts the same ranks.
COMMAND = """pip install . && cd notebooks/project &&
    exec torchrun --nproc-per-node=$SM_NUM_GPUS --shutdown-timeout=100 distributed.py --stage=3
    --steps=2000 --save-every=20 --data=$SM_CHANNEL_TEXT/text --folder=/opt/ml/checkpoints"""


def trainer(role, image, text, run, session=None):
    return ModelTrainer(
        sagemaker_session=session,
        role=role,
        training_image=image,
        source_code=SourceCode(
            source_dir=str(COURSE), command=COMMAND, ignore_patterns=LEFT_OUT
        ),
        # One instance: each has a local folder of its own, and the script needs one for all ranks.
        compute=Compute(
            instance_type="ml.p4d.24xlarge",
            instance_count=1,
            enable_managed_spot_training=True,
        ),
        stopping_condition=StoppingCondition(
            max_runtime_in_seconds=DAY, max_wait_time_in_seconds=2 * DAY
        ),
        checkpoint_config=CheckpointConfig(
            s3_uri=run, local_path="/opt/ml/checkpoints"
        ),
        input_data_config=[InputData(channel_name="text", data_source=text)],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("role", "image", "text", "run"):
        parser.add_argument(f"--{name}", required=True)
    trainer(**vars(parser.parse_args())).train(wait=False)
