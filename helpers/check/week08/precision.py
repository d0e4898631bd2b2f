"""Exercises of week 8: a step with a loss scale, a master copy, stochastic rounding, bytes."""

import math

import torch
import torch.distributed as dist

from helpers.check import hidden
from helpers.check.answers import plain, short
from helpers.check.exercise import Edit, Exercise, among
from helpers.check.number import Number
from helpers.check.ranks import OnRanks, observed
from helpers.check.verdict import NotRight
from helpers.check.week06.amounts import PADDING
from helpers.precision.formats import BF16
from helpers.precision.rounding import neighbours

# scaled_step

LR, CLIP = 0.5, 1.0
START = {"scale": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 2, "good_steps": 0}
INF, NAN = math.inf, math.nan
# Ranks; the true gradient of each rank in each step, before scaling; INF and NAN overflowed in
# fp16. 2^-24 is the smallest number of fp16. 60 × 1024 is near its largest, 65,504.
TRAININGS = (
    (1, [[[0.25, -0.25, 0.5]], [[0.125, 0.25, 0.0]], [[0.25, 0.0, 0.0]]], LR),  # it grows
    (1, [[[3e-7, -7e-7, 1e-6]], [[2e-7, 0.0, 0.0]]], 2.0**18),  # too small for fp16 without a scale
    (1, [[[0.5, 0.25, 0.0]], [[INF, 0.25, 0.0]], [[0.25, 0.5, 0.0]], [[0.125, 0.0, 0.5]]], LR),
    (2, [[[0.5, 0.0, 0.25], [0.25, 0.25, -0.5]], [[3.0, 4.0, 0.0], [0.0, 0.0, 12.0]]], LR),  # clips
    (2, [[[0.5, 0.5, 0.0], [NAN, 0.5, 0.0]], [[0.25, 0.0, 0.5], [0.25, 0.0, 0.0]]], LR),
    (2, [[[60.0, 0.0, 0.0], [60.0, 0.0, 0.0]], [[0.5, 0.0, 0.0], [0.25, 0.0, 0.0]]], LR),  # its sum
)


def run_steps(worker, solve, steps, lr):
    master, scaler, trace = torch.tensor([1.0, -2.0, 0.5]), dict(START), {}
    for k, step in enumerate(steps, start=1):
        gradient = (torch.tensor(step[worker.rank]) * scaler["scale"]).half()
        answer, seen = observed(solve, worker, master, gradient, scaler, lr, CLIP)
        trace[f"unwaited in step {k}"] = seen["unwaited"]
        trace[f"step {k}: the master copy"] = tuple(master.tolist())
        skipped = answer if isinstance(answer, bool) else short(plain(answer))
        trace[f"step {k}: what is returned"] = skipped
        trace[f"step {k}: the scaler"] = plain(scaler)
        scale = scaler.get("scale")
        if not isinstance(scale, int | float) or not 0 < scale < INF:
            break
    return trace


def loss_scaled(worker, master, gradient, scaler, lr, max_norm):
    total = gradient.float()
    dist.all_reduce(total)
    scale = scaler["scale"]
    finite = bool(total.isfinite().all())
    if not finite:
        scaler["scale"] *= scaler["backoff"]
        scaler["good_steps"] = 0
        return True
    total /= scale
    factor = min(1.0, max_norm / max(total.norm().item(), 1e-12))
    master -= lr * factor * total
    scaler["good_steps"] += 1
    if scaler["good_steps"] == scaler["interval"]:
        scaler["scale"] *= scaler["growth"]
        scaler["good_steps"] = 0
    return False


REDUCE, FINITE = "dist.all_reduce(total)", "finite = bool(total.isfinite().all())"
BACKOFF, GROWTH = 'scaler["scale"] *= scaler["backoff"]', 'scaler["scale"] *= scaler["growth"]'
AFTER_A_SKIP = '        scaler["good_steps"] = 0\n        return True'
AFTER_GROWTH = '        scaler["good_steps"] = 0\n    return False'
COUNT = 'scaler["good_steps"] == scaler["interval"]'
scaled_step = OnRanks(
    right=loss_scaled,
    run=run_steps,
    cases=tuple((ranks, {"steps": steps, "lr": lr}) for ranks, steps, lr in TRAININGS),
    close=1e-5,
    slips=(
        (Edit("    total /= scale\n    factor", "    factor", "master -= lr",
              "total /= scale\n    master -= lr"), "It was clipped while it was still scaled. "
         "Which gradient does max_norm limit?"),
        (Edit("total /= scale", "total *= 1"), "The gradient still has the factor of the loss. "
         "What must happen before clipping and update?"),
        (Edit("total /= scale", "total *= scale"), "The gradient was multiplied by the scale once "
         "more. Which operation undoes a multiplication?"),
        (Edit("    total /= scale",
              "    last = scaler['good_steps'] + 1 == scaler['interval']\n    total /= scale * "
              "(scaler['growth'] if last else 1.0)"), "The gradient was divided by the scale of "
         "the next step. Which scale was in the loss of this one? First the update, then adapt the "
         "scale."),
        (Edit("gradient.float()", "(gradient / scaler['scale']).float()", "total /= scale", "pass"),
         "You divide by the scale in fp16, where small gradients lose their digits again. Cast "
         "first, then unscale."),
        (Edit("factor = min(1.0, max_norm / max(total.norm().item(), 1e-12))", "factor = 1.0"),
         "The norm of the gradient is larger than max_norm. Which factor makes it max_norm?"),
        (Edit("min(1.0, max_norm / max(total.norm().item(), 1e-12))",
              "max_norm / max(total.norm().item(), 1e-12)"), "A gradient with a smaller norm than "
         "max_norm was made larger. Which gradients must stay as they are?"),
        (Edit(REDUCE,
              "total *= min(1.0, max_norm * scaler['scale'] / total.norm().item())\n    " + REDUCE,
              "    factor =", "    max_norm = INF\n    factor ="), "Each rank clipped its own "
         "part. max_norm limits the full gradient: reduce first."),
        (Edit("total = gradient.float()", "total = gradient.clone()", "    scale =",
              "    total = total.float()\n    scale ="), "The sum over the ranks was made in fp16, "
         "and it overflowed or lost digits. Cast first, then reduce."),
        (Edit(REDUCE, ""), "Each rank updated with its own part. The full gradient is the sum over "
         "the ranks: which collective makes it?"),
        (Edit("total /= scale", "total /= scale * worker.world_size"), "The ranks' gradients add "
         "up to the full gradient: a mean divides it once more."),
        (Edit(FINITE, "finite = bool(gradient.isfinite().all())"), "A rank skipped alone, and the "
         "others updated: now the copies differ. How do all ranks learn of an overflow? The "
         "reduced gradient is the same on all ranks."),
        (Edit(FINITE, "finite = True"), "An infinity or a NaN reached the master copy. One of them "
         "is enough to lose the training. What do you do with such a step?"),
        (Edit(FINITE, "finite = not total.isnan().any()"), "An infinity is not finite either, and "
         "max_norm / infinity times infinity is NaN. Which test finds both?"),
        (Edit("master -= lr * factor * total", "master = master - lr * factor * total"),
         "The master copy has not changed: `master -= …` writes into the tensor, `master = …` does "
         "not."),
        (Edit("master -= lr", "master += lr"), "The step goes up the gradient. Which sign leads "
         "down?"),
        (Edit(BACKOFF, "pass"), "The scale was too large for this step. What follows from that?"),
        (Edit(BACKOFF, 'scaler["scale"] *= scaler["backoff"] ** 2'), "After a skipped step, "
         "multiply the scale by the backoff, once."),
        (Edit(AFTER_A_SKIP, "        return True"), Edit(AFTER_A_SKIP,
              '        scaler["good_steps"] += 1\n        return True'), "A skipped step ends the "
         "row of good steps: the count starts again at 0."),
        (Edit(COUNT, 'scaler["good_steps"] == scaler["interval"] - 1'), "The scale grew too early. "
         "It grows after `interval` good steps in a row; a skipped step is not a good one."),
        (Edit(COUNT, 'scaler["good_steps"] > scaler["interval"]'), Edit(COUNT, "False"),
         Edit('    scaler["good_steps"] += 1\n', "", COUNT, COUNT, "    return False",
              '    else:\n        scaler["good_steps"] += 1\n    return False'), "That was the "
         "last of `interval` good steps in a row: it grows."),
        (Edit(AFTER_GROWTH, "    return False"), Edit(COUNT,
              'scaler["good_steps"] >= scaler["interval"]', AFTER_GROWTH, "    return False"),
         "The scale has grown: the count of good steps starts again at 0."),
        (Edit('scaler["good_steps"] += 1', "pass"), "Count the good steps since the last change of "
         "the scale."),
        (Edit("return True", "return False"), Edit("return True", "return None", "return False",
              "return None"), "Return True or False: whether this step's update was skipped."),
        (Edit("return True", "return finite", "return False", "return finite"),
         "You return whether the update was made. Return True if it was skipped."),
        (Edit("scale = scaler", "scaler['seen'] = 1\n    scale = scaler"), "Change only 'scale' "
         "and 'good_steps', in the same dict."),
    ),
    last="Unscale, clip, then subtract lr times the gradient, in place. After a gradient that is "
    "not finite, change the scaler alone.",
)  # fmt: skip


# master_adam

RATE, BETAS, EPS = 0.05, (0.9, 0.95), 1e-8
STEPS, COUNTED = 12, 64


def training():
    """Gradients of many sizes: else eps, and digits that 16 bits lose, would not show."""
    torch.manual_seed(hidden.seed(0))
    start = torch.randn(COUNTED)
    sizes = [10.0 ** torch.randint(-6, 1, (COUNTED,)) for _ in range(STEPS)]
    gradients = [(torch.randn(COUNTED) * size).bfloat16() for size in sizes]
    return [(f"{STEPS} steps of {COUNTED} numbers", (start, gradients))]


def play_training(solve, start, gradients) -> dict:
    parameter, master = start.bfloat16(), start.clone()
    moments, trace = (torch.zeros(COUNTED), torch.zeros(COUNTED)), {}
    for k, gradient in enumerate(gradients, start=1):
        given = gradient.clone()
        solve(parameter, master, moments, given, k, RATE, BETAS, EPS)
        trace[f"step {k}: the gradient has"] = given
        trace[f"step {k}: the master copy has"] = master.clone()
        off = parameter.float() - master.bfloat16().float()
        trace[f"step {k}: the parameter, beside the master copy in bf16, has"] = off
    return trace | {"the moments after the last step have": moments}


def adam(parameter, master, moments, gradient, step, lr, betas, eps):
    wide = gradient.float()
    first, second = moments
    first.mul_(betas[0]).add_((1 - betas[0]) * wide)
    second.mul_(betas[1]).add_((1 - betas[1]) * wide.square())
    mean = first / (1 - betas[0] ** step)
    variance = second / (1 - betas[1] ** step)
    update = lr * mean / (variance.sqrt() + eps)
    master -= update
    parameter.copy_(master)


ADDED_1, ADDED_2 = "(1 - betas[0]) * wide)", "(1 - betas[1]) * wide.square()"
MOMENTS = "first, second = moments"
CORRECT_1, CORRECT_2 = " / (1 - betas[0] ** step)", " / (1 - betas[1] ** step)"
NO_CORRECTION = (
    "The moments start at zero, so the first steps are too small or too large. Which division "
    "corrects this?"
)
COPY = "At the end of a step, the parameter is the master copy, rounded to bf16."
SQUARED = "(1 - betas[1]) * (gradient * gradient)"
master_adam = Exercise(
    right=adam,
    play=play_training,
    cases=training,
    close=2e-6,
    slips=(
        (Edit(CORRECT_1, "", CORRECT_2, ""), NO_CORRECTION),
        (Edit(CORRECT_1, " / (1 - betas[0] ** max(step - 1, 1))", CORRECT_2,
              " / (1 - betas[1] ** max(step - 1, 1))"), Edit(CORRECT_1,
              " / (1 - betas[0] ** (step + 1))", CORRECT_2, " / (1 - betas[1] ** (step + 1))"),
         "In the first call, step is 1: use it as it is."),
        (Edit("mean = first",
              "first.copy_(first.bfloat16())\n    second.copy_(second.bfloat16())\n    mean = "
              "first"), "The moments have lost digits. In which format must they be computed and "
         "kept?"),
        (Edit("wide.square()", "gradient.square().float()"), "The square was made in bf16: it lost "
         "digits before the second moment got it. Cast the gradient, then square."),
        *((Edit(ADDED_1, mean, ADDED_2, square), "The gradient entered a product in bf16, which is "
           "rounded to bf16 again. Cast it to fp32 first.")
          for mean in (ADDED_1, "(1 - betas[0]) * gradient)")
          for square in (ADDED_2, SQUARED, "(1 - betas[1]) * gradient * gradient",
                         "gradient * gradient * (1 - betas[1])")
          if "gradient" in mean + square),
        (Edit(MOMENTS, "first, second = (one.clone() for one in moments)"), "The moments that the "
         "caller keeps are still 0. `m = …` gives a name to a new tensor: which call writes into "
         "the moments that were given?"),
        (Edit("    mean = first / (1 - betas[0] ** step)",
              "    mean = first.div_(1 - betas[0] ** step)",
              "variance = second / (1 - betas[1] ** step)",
              "variance = second.div_(1 - betas[1] ** step)"), "The corrected moments were kept, "
         "and are corrected again in the next step. Keep the averages as they are."),
        (Edit("first.mul_(betas[0]).add_((1 - betas[0]) * wide)",
              "first.mul_(1 - betas[0]).add_(betas[0] * wide)",
              "second.mul_(betas[1]).add_((1 - betas[1]) * wide.square())",
              "second.mul_(1 - betas[1]).add_(betas[1] * wide.square())"), "beta is the share of "
         "the old average: which part of the new gradient is left?"),
        (Edit("first, second = moments", "first, second = moments\n    betas = betas[::-1]"),
         "Which beta belongs to the mean of the gradients, and which to that of their squares?"),
        (Edit("wide.square()", "wide"), "The second moment averages the squares of the gradients."),
        (Edit("variance.sqrt()", "variance"), "Divide by the root of the second moment."),
        (Edit("(variance.sqrt() + eps)", "(variance + eps).sqrt()"), "eps is added to the root, "
         "not to the variance under it."),
        (Edit("lr * mean / (variance.sqrt()", "lr * mean * (1 - betas[1] ** step) ** 0.5 / "
              "(second.sqrt()"), "eps is added to the root of the corrected second moment. To "
         "which root do you add it?"),
        (Edit("master -= update", "master.copy_(parameter.float() - update)"), "The update started "
         "from the rounded parameter, so small updates are lost in each step. Which tensor "
         "remembers them?"),
        (Edit("master -= update", "master -= update.bfloat16()"), "The update was rounded to bf16 "
         "before the master copy got it. Keep it in fp32."),
        (Edit("master -= update", "master = master - update"), "The master copy has not changed. "
         "Update it in place: `master -= …` writes into the tensor, `master = …` does not."),
        (Edit("    master -= update\n    parameter.copy_(master)", "    parameter -= update"),
         "Only the parameter was updated, and small updates are lost in bf16. Update the master "
         "copy in place; the parameter is its rounded copy."),
        (Edit("master -= update", "master += update"), "The step goes up the gradient. Which sign "
         "leads down?"),
        (Edit("    parameter.copy_(master)", ""), Edit("parameter.copy_(master)",
              "parameter = master.bfloat16()"), COPY + " It has not changed: write into it."),
        (Edit("parameter.copy_(master)", "parameter -= update.bfloat16()"),
         Edit("parameter.copy_(master)", "parameter -= update"),
         COPY + " You subtract the update from it instead."),
        (Edit("parameter.copy_(master)",
              "parameter.copy_((master.view(torch.int32) & -(2**16)).view(torch.float32))"),
         "Its last 16 bits were cut off: that always rounds toward zero. Which way is nearer?"),
        (Edit("wide = gradient.float()", "wide = gradient.mul_(0.5).float() * 2"), "The gradient "
         "has changed. Write only into the others."),
    ),
    last="Adam: two averages, each divided by 1 - beta**step; then the update, in fp32 and in "
    "place.",
)  # fmt: skip


# round_stochastically

MANY = 20_000
FAR = 5.0  # standard errors: a right answer is this far off once in 1.7 million checks
SHARES = (0.9, 0.5, 0.25, 0.1)
UP = "rounded up"


def roundings():
    torch.manual_seed(hidden.seed(1))
    # positive, so that rounding toward zero and away from it both change the mean
    spread = torch.rand(MANY) * 2.0 ** torch.randint(-20, 20, (MANY,))
    exact = torch.randn(MANY).bfloat16().float()
    made = [("numbers of bf16", (exact, 1)), ("numbers of many sizes", (spread, 2))]
    for start, step in ((1.0, 2.0**-7), (-3.0, -(2.0**-6)), (2.0**-20, 2.0**-27)):
        for share in SHARES:
            x = torch.full((MANY,), start + share * step)
            words = f"{MANY:,} times a number at {share:.0%} of the way from {start:g} to the next"
            made.append((words, (x, 3)))
    return made


def play_rounding(solve, x, seed) -> dict:
    """What kind of answer; how many were rounded up, and should be; what the seed changes."""

    def rounded(seed):
        return solve(x.clone(), torch.Generator().manual_seed(seed))

    answer = rounded(seed)
    if not isinstance(answer, torch.Tensor):
        return {"returned": short(answer)}
    trace = {"returned": f"{answer.dtype}, shape {tuple(answer.shape)}"}
    if answer.shape != x.shape or answer.is_complex():
        return trace
    below, above = neighbours(x, BF16)
    far = (answer.float() != below) & (answer.float() != above)
    between = below != above
    up = (answer.float() == above)[between & ~far].double()
    share = ((x - below) / (above - below))[between].double()
    trace["alike"] = len(x.unique()) == 1 and len(answer.unique()) == 1
    trace["far"] = float(far.double().mean())
    trace[UP] = float(up.mean()) if len(up) else 0.0
    trace["should be"] = float(share.mean()) if len(share) else 0.0
    trace["error"] = float((share * (1 - share)).sum().sqrt()) / max(len(share), 1)
    if seed == 2:
        trace["equal seeds"] = bool(torch.equal(rounded(5), rounded(5)))
        trace["other seeds"] = not torch.equal(rounded(5), rounded(6))
    if far.any():
        k = int(far.nonzero()[0])
        trace["example"] = (
            f"{x[k]:.9g} became {answer.flatten()[k]:.9g}; its neighbours are {below[k]:.9g} and "
            f"{above[k]:.9g}"
        )
    return trace


def say_rounding(facet, found, right, *arguments) -> str:
    return {
        "returned": f"returned {found}; it should be {right}",
        "alike": "equal numbers must become both neighbours, and all became the same one",
        "equal seeds": "equal seeds gave different results",
        "other seeds": "two seeds gave equal results",
    }[facet]


def judge_rounding(trace, right, x, seed):
    if "example" in trace:
        raise NotRight(trace["example"])
    if abs(trace[UP] - trace["should be"]) > FAR * trace["error"]:
        words = f"{trace[UP]:.1%} were rounded up, and should be {trace['should be']:.1%}"
        raise NotRight(words, "The chance to round up is the way from the lower neighbour, over "
                       "the whole way.")  # fmt: skip


def with_noise(x, generator):
    return (x + (torch.rand(x.shape, generator=generator) - 0.5) * 2**-7).bfloat16()


def by_bits(x, generator):
    low, high = 0, 2**16
    noise = torch.randint(low, high, x.shape, dtype=torch.int32, generator=generator)
    noisy = x.view(torch.int32) + noise
    kept = noisy & -(2**16)
    return kept.view(torch.float32).bfloat16()


NOISE = "torch.randint(low, high, x.shape, dtype=torch.int32, generator=generator)"
REST = "(x.view(torch.int32) & 0xFFFF)"  # of the bits: the way from the neighbour toward zero
ROUND_UP = f"(({REST} > 0).int() * 0xFFFF)"  # added before the last bits are cut off
KEPT_BITS = "kept.view(torch.float32).bfloat16()"
TO_THE_NEXT = (
    "The result is one of the two neighbours. How large may the random number be, so that it "
    "reaches the next number at most? A number of bf16 stays as it is."
)
FROM_IT = "Draw the random numbers from the generator: then a training can be repeated."
A_TENSOR = "Return a tensor of torch.bfloat16, as large as x."
round_stochastically = Exercise(
    right=by_bits,
    play=play_rounding,
    cases=roundings,
    close=0.02,  # of shares of 20,000
    free=("far", UP),
    rule=judge_rounding,
    say=say_rounding,
    slips=(
        (lambda x, generator: x.bfloat16(), "That is rounding to the nearest: the mean of many "
         "equal numbers is off."),
        (Edit("low, high = 0, 2**16", "low, high = 0, 1"), "Every number was rounded toward zero: "
         "16 bits were cut off. What is added before?"),
        (Edit("low, high = 0, 2**16", "low, high = 2**16 - 1, 2**16"), "Every number was rounded "
         "away from zero."),
        (Edit("low, high = 0, 2**16", "low, high = 0, 2**15"), "Too few were rounded up: the "
         "random number is too small. How many bits are cut off?"),
        (Edit("low, high = 0, 2**16", "low, high = 0, 2**17"), TO_THE_NEXT),
        (Edit("x.shape, dtype", "(), dtype"), "One random number decided for all numbers: equal "
         "numbers all go the same way. Draw one for each number of x."),
        (Edit("generator=generator", "generator=None"), FROM_IT),
        (Edit("generator=generator", "generator=torch.Generator().manual_seed(0)"),
         FROM_IT + " Another seed must give other results."),
        (Edit(NOISE, f"(torch.rand(x.shape, generator=generator) < 0.5) * {ROUND_UP}"),
         "Both neighbours are equally frequent. The nearer one must be more frequent."),
        (Edit("noisy = x.view(torch.int32) + noise",
              f"noisy = x.view(torch.int32) + (noise >= {REST}) * {ROUND_UP}"), "The farther "
         "neighbour is the more frequent one. In which direction do you round?"),
        (Edit("kept = noisy & -(2**16)", "kept = noisy"), "The random bits were added, and then it "
         "was rounded to the nearest: that rounds twice. Cut off the last 16 bits instead."),
        (Edit("kept = noisy & -(2**16)", "kept = noisy & 0xFFFF"), "The wrong half of the bits was "
         "kept: sign, exponent and the first fraction bits are the upper 16."),
        (Edit("x.view(torch.int32) + noise", "x.to(torch.int32) + noise"), "x.to(torch.int32) "
         "converts the value. Which call gives the bits of a number as a whole number?"),
        (Edit(KEPT_BITS, "kept.float().bfloat16()"), "That converts a whole number. Which call "
         "reads the bits as a number again?"),
        (with_noise, "The noise has one size for all numbers. How far the next number of bf16 is, "
         "depends on the exponent; on the bits, it is always the same."),
        (Edit(KEPT_BITS, "kept.view(torch.float32)"), A_TENSOR),
        (Edit(KEPT_BITS, "kept.view(torch.float32).bfloat16()[:1]"), "Round each number of x."),
    ),
    about={"returned": A_TENSOR},
    last="One of the two neighbours, and the nearer one more often. " + TO_THE_NEXT,
)  # fmt: skip


# mixed_bytes

KINDS = ("parameters", "gradients", "master copy", "moments")


def state_bytes(params, ranks, stage, low_bytes, master, moment_bytes):
    shard = -(-params // ranks)
    own, sent, updated = (shard if stage >= first else params for first in (3, 2, 1))
    copy = 4 * updated
    moments = 2 * moment_bytes * updated
    return {
        "parameters": low_bytes * own,
        "gradients": low_bytes * sent,
        "master copy": copy if master else 0,
        "moments": moments,
    }


FIRSTS = "(3, 2, 1)"  # the first stage that shards a kind
STAGE = (
    "Which is the first stage that shards each kind? Stage 1 shards the optimizer's states, stage "
    "2 also the gradients, stage 3 everything."
)
mixed_bytes = Number(
    right=state_bytes,
    names=KINDS,
    kind=dict,
    unit="bytes",
    draw=among(params=(10, 10**9), ranks=(2, 99), stage=(0, 3), low_bytes=[1, 2, 4],
               master=[False, True], moment_bytes=[2, 4]),
    cases=(  # parameters, ranks, stage, bytes of a low number, master copy?, bytes of a moment
        ("bf16 with a master copy, one rank", (1_000_000, 1, 0, 2, True, 4)),
        ("all in fp32, one rank", (1_000_000, 1, 0, 4, False, 4)),
        ("bf16 alone, one rank", (1_000_000, 1, 0, 2, False, 2)),
        ("bf16 with a master copy, 8 ranks, stage 0", (1_000_000, 8, 0, 2, True, 4)),
        ("bf16 with a master copy, 64 ranks, stage 1", (7_000_000_000, 64, 1, 2, True, 4)),
        ("bf16 with 16-bit moments, 64 ranks, stage 1", (7_000_000_000, 64, 1, 2, True, 2)),
        ("bf16 with a master copy, 3 ranks, stage 2", (1001, 3, 2, 2, True, 4)),
        ("fp8 weights and gradients with a master copy, 4 ranks, stage 3",
         (1001, 4, 3, 1, True, 4)),
    ),
    slips=(
        *PADDING,
        (Edit(FIRSTS, "(9, 9, 9)"), "You shard nothing. " + STAGE),
        (Edit(FIRSTS, "(0, 0, 0)"), "You shard every kind at every stage. " + STAGE),
        *((Edit(FIRSTS, str(order)), STAGE) for order in (
            (1, 1, 1), (1, 2, 3), (3, 3, 1), (3, 1, 1), (2, 2, 1), (2, 1, 0), (3, 2, 9), (3, 9, 1),
            (9, 2, 1), (3, 1, 2), (3, 2, 2), (3, 2, 3))),
        (Edit("copy = 4 * updated", "copy = 4 * params"), Edit("copy = 4 * updated",
              "copy = 4 * own"), "This stage shards the master copy over the ranks: it is the "
         "optimizer's, as the moments."),
        (Edit("2 * moment_bytes * updated", "2 * moment_bytes * params"), "This stage shards the "
         "moments over the ranks."),
        (Edit("copy if master else 0", "copy"), "There is no master copy here: the optimizer "
         "updates the parameters themselves."),
        (Edit("copy if master else 0", "0"), "The optimizer updates a copy in fp32. How many bytes "
         "has one of its numbers?"),
        (Edit("copy = 4 * updated", "copy = low_bytes * updated"), "The master copy is in fp32, "
         "whatever the format of the parameters. How many bytes has one of its numbers?"),
        (Edit("low_bytes * own", "(4 if master else low_bytes) * own"), "The master copy is apart. "
         "Which format have the parameters of the forward?"),
        (Edit("low_bytes * sent", "4 * sent"), Edit("low_bytes * sent",
              "(4 if master else low_bytes) * sent"), "A gradient has the format of its parameter: "
         "the backward runs in low precision."),
        (Edit("2 * moment_bytes", "moment_bytes"), "AdamW keeps two moments for each parameter."),
    ),
    last="How many numbers of this kind has a rank, and how many bytes has each? How many moments "
    "are there?",
)  # fmt: skip
