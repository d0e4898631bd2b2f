"""Published: ZeRO-3 beside tensor, pipeline and data parallelism together, on the same models.

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", arXiv:2104.04473, section 5.2 and Table 2. GPT models on A100s with 80 GB, bf16, with
activation recomputation; ZeRO-3 is DeepSpeed's, without model parallelism.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """A row of the table.

    Attributes:
        scheme: "ZeRO-3", or "PTD": pipeline, tensor and data parallelism.
        parameters: of the model.
        model_parallel: GPUs that share one copy of the model, tensor times pipeline ranks.
        batch, micro_batch: sequences.
        gpus: of the run.
        teraflops: 10^12 FLOP/s that each GPU achieved.
        days: to train on 300 billion tokens.
    """

    scheme: str
    parameters: float
    model_parallel: int
    batch: int
    gpus: int
    micro_batch: int
    teraflops: float
    days: float


GPT3, LARGE = 174.6e9, 529.6e9
# scheme, parameters, model-parallel, batch, GPUs, micro-batch, TFLOP/s, days
_ROWS = (
    ("ZeRO-3", GPT3, 1, 1536, 384, 4, 144, 90),
    ("ZeRO-3", GPT3, 1, 1536, 768, 2, 88, 74),
    ("ZeRO-3", GPT3, 1, 1536, 1536, 1, 44, 74),
    ("ZeRO-3", LARGE, 1, 2560, 640, 4, 138, 169),  # did not fit on 560 GPUs with micro-batch 4
    ("ZeRO-3", LARGE, 1, 2240, 1120, 2, 98, 137),
    ("ZeRO-3", LARGE, 1, 2240, 2240, 1, 48, 140),
    ("PTD", GPT3, 96, 1536, 384, 1, 153, 84),
    ("PTD", GPT3, 96, 1536, 768, 1, 149, 43),
    ("PTD", GPT3, 96, 1536, 1536, 1, 141, 23),
    ("PTD", LARGE, 280, 2240, 560, 1, 171, 156),
    ("PTD", LARGE, 280, 2240, 1120, 1, 167, 80),
    ("PTD", LARGE, 280, 2240, 2240, 1, 159, 42),
)
_NAMES = tuple(Run.__dataclass_fields__)
TABLE = tuple(Run(**dict(zip(_NAMES, row, strict=True))) for row in _ROWS)


def runs_of(scheme: str, parameters: float) -> list[Run]:
    """The runs of a scheme on one model, by number of GPUs."""
    found = [run for run in TABLE if (run.scheme, run.parameters) == (scheme, parameters)]
    return sorted(found, key=lambda run: run.gpus)
