"""Exercises of week 7: rows of a checkpoint that other ranks saved, and DeepSpeed's settings."""

import torch

from helpers.check import hidden
from helpers.check.answers import difference, plain, short
from helpers.check.exercise import Edit, Exercise, parted
from helpers.check.ranks import OnRanks
from helpers.check.verdict import NotRight
from helpers.plans.deepspeed_config import BATCH, KINDS

# reshard_rows

COLUMNS = 3


def bounds(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The rows of a rank, as DTensor cuts: pieces of ceil(rows / ranks)."""
    size = -(-rows // ranks)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def run_rows(worker, solve, saved, rows):
    first = 1.0 + 1000 * hidden.shift(99)
    whole = torch.arange(first, first + rows * COLUMNS).view(rows, COLUMNS)
    reads = []

    def read(saved_rank, start, stop):
        """Rows start:stop of the file of `saved_rank`, counted from the file's first row."""
        begin, end = bounds(rows, saved_rank, saved)
        if not 0 <= saved_rank < saved or not 0 <= start <= stop <= end - begin:
            raise IndexError(
                f"read({saved_rank}, {start}, {stop}): the file of rank {saved_rank} has rows 0 to "
                f"{end - begin}"
            )
        reads.append(stop - start)
        return whole[begin + start : begin + stop].clone()

    answer = solve(worker, rows, saved, read)
    tensor = isinstance(answer, torch.Tensor)
    return {
        "what is returned": "a tensor" if tensor else short(plain(answer)),
        "the rows": plain(answer),
        "the dtype": str(answer.dtype) if tensor else "",
        "rows read": sum(reads),
    }


def judge_reads(trace, right, n, case):
    for rank, (read, own) in enumerate(zip(trace["rows read"], right["rows read"], strict=True)):
        if read > own:
            raise NotRight(f"rank {rank} has {own} rows, and read {read}", TOO_MUCH)


def own_rows(worker, rows, saved_ranks, read):
    size = -(-rows // worker.world_size)
    start, stop = min(worker.rank * size, rows), min((worker.rank + 1) * size, rows)
    each = -(-rows // saved_ranks)
    pieces = [read(0, 0, 0)]
    for saved in range(saved_ranks):
        first, last = min(saved * each, rows), min((saved + 1) * each, rows)
        low, high = max(start, first), min(stop, last)
        if low < high:
            piece = read(saved, low - first, high - first)
            pieces.append(piece)
    return torch.cat(pieces)


def spread(worker, rows, saved_ranks, read):
    """The rest goes to the first ranks."""
    small, rest = divmod(rows, worker.world_size)
    start = worker.rank * small + min(worker.rank, rest)
    new = f"start, stop = {start}, {start + small + (worker.rank < rest)}"
    return Edit(OWN, new).of(own_rows)(worker, rows, saved_ranks, read)


def own_file(worker, rows, saved_ranks, read):
    start, stop = bounds(rows, worker.rank, saved_ranks)
    return read(min(worker.rank, saved_ranks - 1), 0, stop - start)


OWN = "start, stop = min(worker.rank * size, rows), min((worker.rank + 1) * size, rows)"
READ = "read(saved, low - first, high - first)"
TOO_MUCH = (
    "The rows are right, but you read more than your own rows. A checkpoint is larger than a "
    "rank's memory: which rows of each file are yours?"
)
EMPTY = (
    "A rank without rows returns a tensor of no rows, with all columns: read(0, 0, 0) has the "
    "right shape."
)
reshard_rows = OnRanks(
    right=own_rows,
    run=run_rows,
    # 10 rows on 4 ranks are 3, 3, 3 and 1; 9 are 3, 3, 3 and 0; 12 on 7 ranks are 2 each and 0
    cases=tuple((ranks, {"saved": saved, "rows": rows}) for ranks, saved, rows in (
        (4, 2, 10), (4, 2, 9), (2, 7, 12)
    )),
    free=("rows read",),
    rule=judge_reads,
    patience=6,
    slips=(
        (Edit("low, high = max(start, first), min(stop, last)", "low, high = first, last"),
         "That is the whole tensor. Which rows are this rank's?"),
        (Edit(READ, "read(saved, 0, last - first)[low - first : high - first]"),
         Edit("if low < high:", "if first < last:", READ,
              "read(saved, 0, last - first)[max(low - first, 0) : max(high - first, 0)]"),
         Edit("[read(0, 0, 0)]", "[read(0, 0, int(start == stop))[:0]]"), TOO_MUCH),
        (spread, Edit("min(worker.rank * size, rows), min((worker.rank + 1) * size, rows)",
              "rows * worker.rank // worker.world_size, rows * (worker.rank + 1) // "
              "worker.world_size"),
         Edit("min(worker.rank * size, rows), min((worker.rank + 1) * size, rows)",
              "rows * worker.rank // worker.world_size, rows * (worker.rank + 1) // "
              "worker.world_size", "min(saved * each, rows), min((saved + 1) * each, rows)",
              "rows * saved // saved_ranks, rows * (saved + 1) // saved_ranks"), "DTensor cuts in "
         "pieces of ceil(rows / ranks), and the last pieces are smaller or empty. You spread the "
         "rest over the ranks."),
        (Edit("size = -(-rows", "size = (rows"), Edit("size = -(-rows", "size = (rows",
              "each = -(-rows", "each = (rows"), "The last rows are on no rank: the division left "
         "a tail. Round up."),
        (own_file, "Those are the rows that this rank had when the checkpoint was saved. There are "
         "other ranks now."),
        (Edit("pieces.append(piece)", "return piece"), Edit("pieces.append(piece)",
              "pieces = [piece]"), Edit("torch.cat(pieces)",
              "torch.cat((*pieces[:2], *pieces[2:][-1:]))"), "Some of your rows are missing: they "
         "lie in more than one file. Which files?"),
        (Edit("high - first)", "high - first - 1)"), "The last row of each piece is missing: "
         "`read` stops before `stop`."),
        (Edit("torch.cat(pieces)", "torch.cat(pieces[::-1])"), "All rows are there, in another "
         "order. Go through the files by rank."),
        (Edit("torch.cat(pieces)", "torch.cat(pieces) if pieces[1:] else torch.empty(0)"),
         Edit("torch.cat(pieces)", "torch.cat(pieces) if pieces[1:] else None"), EMPTY),
        (Edit("torch.cat(pieces)", "pieces"), "Return a tensor: this rank's rows, also if it has "
         "none."),
        (Edit("torch.cat(pieces)", "torch.cat(pieces).double()"), "The rows are right, but their "
         "dtype is not. Which dtype has what `read` returns?"),
    ),
    failures=(
        (r"read\(.*the file of rank", "`read` counts from the first row of that file. Where does "
         "the file begin in the whole tensor? Subtract it, and stay within the file.",
         Edit(READ, "read(saved, low, high)").of(own_rows)),
        (r"non-empty (list|TensorList)|at least one", EMPTY,
         Edit("[read(0, 0, 0)]", "[]").of(own_rows)),
    ),
    about={"the rows": "Write down the first and the last row of each rank and of each file, in "
           "pieces of ceil(rows / ranks). Which of a file's rows are this rank's?"},
    last="For each file: where does it begin and end in the whole tensor? Which of these rows are "
    "between your first and your last?",
)  # fmt: skip


# read_deepspeed

TRAIN, MICRO, STEPS = BATCH
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}
HOST, SSD, NONE = {"device": "cpu"}, {"device": "nvme"}, {"device": "none"}
BOTH = {"offload_optimizer": HOST, "offload_param": HOST}
ANSWERS = ("batch", "micro_batch", "accumulation", "sharded", "gpu_bytes")
MILLION = 1_000_000


def zero(stage, **fields) -> dict:
    return {"zero_optimization": {"stage": stage, **fields}}


CONFIGURATIONS = (  # the first have one difficulty each
    ("no ZeRO, fp16", ({MICRO: 4} | FP16, 8, MILLION)),
    ("accumulation", ({MICRO: 4, STEPS: 5} | BF16 | zero(1), 8, MILLION)),
    ("only the whole batch is named", ({TRAIN: 96} | BF16 | zero(1), 8, MILLION)),
    ("whole batch and micro-batch", ({TRAIN: 96, MICRO: 3} | BF16 | zero(2), 8, MILLION)),
    ("stage 3", ({MICRO: 2} | BF16 | zero(3), 16, MILLION)),
    ("the optimizer on the CPU", ({MICRO: 1} | BF16 | zero(2, offload_optimizer=HOST), 8, MILLION)),
    ("parameters on an SSD", ({MICRO: 1} | BF16 | zero(3, offload_param=SSD), 8, MILLION)),
    ("a section without effect",
     ({MICRO: 1} | BF16 | zero(1, offload_optimizer=NONE), 8, MILLION)),
    ("everything", ({TRAIN: 512, STEPS: 4} | FP16 | zero(3, **BOTH), 64, 7_000_000_000)),
)  # fmt: skip


def drawn_settings(random):
    """One of the cases, on other ranks and with another model."""
    words, (settings, _, params) = random.choice(CONFIGURATIONS)
    return words, (settings, random.choice((2, 4, 8, 16, 32)), params + random.randint(1, 9999))


def play_settings(solve, *arguments) -> dict:
    found = parted(solve(*arguments), ANSWERS, dict)
    kinds = found.get("sharded")
    if isinstance(kinds, list | tuple | set | frozenset) and set(map(str, kinds)) <= set(KINDS):
        return found | {"sharded": [kind for kind in KINDS if kind in kinds]}
    return found


def say_settings(facet, found, right, settings, ranks, params) -> str:
    return f"{settings} on {ranks} ranks\n{facet}: {difference(found, right)[0]}"


def meaning(settings, ranks, params):
    batch = settings.get("train_batch_size")
    micro = settings.get("train_micro_batch_size_per_gpu")
    steps = settings.get("gradient_accumulation_steps")
    if steps is None:
        steps = batch // (micro * ranks) if batch and micro else 1
    if micro is None:
        micro = batch // (steps * ranks)
    config = settings.get("zero_optimization", {})
    sharded = ["optimizer", "gradients", "parameters"][: config.get("stage", 0)]
    away = []
    if config.get("offload_optimizer", {}).get("device", "none") != "none":
        away += ["optimizer", "gradients"]
    if config.get("offload_param", {}).get("device", "none") != "none":
        away += ["parameters"]
    held = 0
    for kind, each in (("parameters", 2), ("gradients", 2), ("optimizer", 12)):
        if kind not in away:
            held += each * params / (ranks if kind in sharded else 1)
    return {
        "batch": micro * steps * ranks,
        "micro_batch": micro,
        "accumulation": steps,
        "sharded": sharded,
        "gpu_bytes": held,
    }


BATCH_IS = '"batch": micro * steps * ranks'
DIVIDED = "(ranks if kind in sharded else 1)"
ORDER = '["optimizer", "gradients", "parameters"][: config.get("stage", 0)]'
OFF_GRADIENTS = 'away += ["optimizer", "gradients"]'
ON_OPTIMIZER = 'config.get("offload_optimizer", {}).get("device", "none") != "none"'
ON_PARAM = 'config.get("offload_param", {}).get("device", "none") != "none"'
OF_STAGES = "Stage 1 shards the optimizer's states, stage 2 also gradients, stage 3 everything."
A_LIST = "sharded is a list with some of " + ", ".join(map(repr, KINDS)) + ", or an empty one."
read_deepspeed = Exercise(
    right=meaning,
    play=play_settings,
    names=ANSWERS,
    kind=dict,
    cases=CONFIGURATIONS,
    draw=drawn_settings,
    close=1e-9,
    say=say_settings,
    slips=(
        (Edit(BATCH_IS, '"batch": micro * ranks'), "One update has several forwards: count "
         "gradient_accumulation_steps."),
        (Edit(BATCH_IS, '"batch": micro * steps'), "Each rank has its own sequences: count the "
         "ranks."),
        (Edit(BATCH_IS, '"batch": micro'), "That is one forward of one rank. Count the ranks, and "
         "the accumulation."),
        (Edit("micro = batch // (steps * ranks)", "micro = batch // steps"),
         Edit("micro = batch // (steps * ranks)", "micro = batch"),
         Edit("micro = batch // (steps * ranks)", "micro = batch // (steps * ranks**(steps > 1))"),
         Edit("micro * ranks)", "micro)"), Edit("micro * ranks)", "micro)", "(steps * ranks)",
              "steps"), "train_batch_size counts the sequences of all ranks for one update."),
        (Edit("micro = batch // (steps * ranks)", "micro = batch // ranks"), "Each rank makes "
         "`accumulation` forwards for one update: batch = micro-batch × accumulation × ranks."),
        (Edit("batch // (micro * ranks) if batch and micro else 1", "1"), "The accumulation is not "
         "named: batch = micro-batch × accumulation × ranks."),
        (Edit("if batch and micro else 1",
              "if batch and micro else batch // ranks if batch else 1"), "With train_batch_size "
         "alone, DeepSpeed does not accumulate."),
        (Edit(ORDER, '["parameters", "gradients", "optimizer"][: config.get("stage", 0)]'),
         "The order is the other way round. " + OF_STAGES),
        (Edit(ORDER, ORDER.replace("0)", "0) + 1")), Edit(ORDER,
              ORDER.replace("0)", "0) - 1").replace("[: ", "[: 0 or ")), Edit(ORDER,
              '["optimizer", "gradients", "parameters"]'), OF_STAGES),
        (Edit('"sharded": sharded', '"sharded": sharded[-1:]'),
         OF_STAGES + " A higher stage includes the lower ones."),
        (Edit('"sharded": sharded', '"sharded": len(sharded)'), Edit('"sharded": sharded',
              '"sharded": ["weights"]'), A_LIST),
        (Edit(OFF_GRADIENTS, 'away += ["optimizer"]'), "offload_optimizer moves the gradients with "
         "the states: the update runs on the CPU, and needs both."),
        (Edit("if kind not in away", "if True"), "Offloaded states wait in RAM or on an SSD, not "
         "on the GPU. Which kinds does each of offload_optimizer and offload_param move?"),
        (Edit(ON_OPTIMIZER, '"offload_optimizer" in config', ON_PARAM, '"offload_param" in config'),
         'The device "none" offloads nothing: the section is there, and has no effect.'),
        (Edit(ON_OPTIMIZER, ON_OPTIMIZER.replace('!= "none"', '== "cpu"'), ON_PARAM,
              ON_PARAM.replace('!= "none"', '== "cpu"')), '"nvme" offloads too: to an SSD.'),
        (Edit(DIVIDED, "1"), "That is the whole model. Which kinds does the stage divide by the "
         "number of ranks?"),
        (Edit(DIVIDED, "ranks"), "Only the sharded kinds are divided by the ranks."),
        (Edit(DIVIDED, "(1 if kind in sharded else ranks)"), "The sharded kinds are divided by the "
         "ranks, the others are whole on each. You have it the other way round."),
        (Edit('("optimizer", 12)', '("optimizer", 8)'), Edit('("optimizer", 12)',
              '("optimizer", 4)'), "AdamW has 12 bytes here: an fp32 copy of the parameter, and "
         "two moments."),
        (Edit('"gpu_bytes": held', '"gpu_bytes": 8 * held'), "Return bytes, not bits."),
        (Edit('"gpu_bytes": held', '"gpu_bytes": held / 1e9'), "Return bytes. Do not divide by "
         "1e9."),
        (Edit('"gpu_bytes": held', '"gpu_bytes": held / 2**30'), "Return bytes. Do not divide by "
         "2**30."),
        *((Edit(f'settings.get("{field}"{rest})', f'settings["{field}"]'), "A file may leave this "
           "field or section out. Which method of a dict has a value for that?")
          for field, rest in (*((size, "") for size in BATCH), ("zero_optimization", ", {}"))),
    ),
    last="batch = micro-batch × accumulation × ranks: two of them give the third. A 16-bit "
    "parameter has 2 bytes, its gradient 2, and AdamW 12: an fp32 copy, two moments.",
)  # fmt: skip
