"""Cross-entropy by vocabulary: the solution passes, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week04 import cross_entropy
from helpers.check.week04.cross_entropy_values import Cut, gradients, losses
from helpers.check.week04.kinds import RIGHT, close
from notebooks.solutions import week04
from tests.check.asked import drawn_anew

MAX = dist.ReduceOp.MAX


@pytest.mark.usefixtures("shared_ranks")
def test_the_solution_passes():
    verdict = check.vocabulary_cross_entropy(week04.vocabulary_cross_entropy)
    assert verdict, verdict


def stub(worker, logits, targets, start):
    raise NotImplementedError


def summed(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def loss(
    *, maximum="all", total="all", target="all", shift=True, mask=True, ignore=True, gradient=None,
    change=None, dtype=None,
):  # fmt: skip
    """The solution, with one part of it changed."""

    def solve(worker, logits, targets, start):
        if dtype:
            logits = logits.to(dtype)
        largest = logits.amax(-1)
        if maximum in ("all", "summed"):
            dist.all_reduce(largest, MAX if maximum == "all" else dist.ReduceOp.SUM)
        elif maximum == "none":
            largest = torch.zeros_like(largest)
        shifted = logits - largest[..., None]
        size = logits.shape[-1]
        rows = targets - start if shift else targets
        here = (rows >= 0) & (rows < size)
        rows = rows.clamp(0, size - 1)
        chosen = shifted.gather(-1, rows[..., None])[..., 0]
        own = chosen * here if mask else chosen
        counted = targets != -100
        if not ignore:
            counted = torch.ones_like(counted)
        exponentials = shifted.exp().sum(-1)
        sums = summed(exponentials) if total == "all" else exponentials
        each = sums.log() - (summed(own) if target == "all" else own)
        if target == "sum of own":
            each = summed((sums.log() - chosen) * here)
        answer = (each * counted).sum()
        one = torch.zeros_like(logits).scatter_add(
            -1, rows[..., None], (here if mask else torch.ones_like(here))[..., None].to(logits)
        )
        softmax = shifted.exp() / summed(exponentials)[..., None]
        parts = {"softmax": softmax, "one": one, "counted": counted[..., None]}
        parts |= {"local": shifted.exp() / exponentials[..., None], "here": here[..., None]}
        of = gradient(parts, worker) if gradient else (softmax - one) * counted[..., None]
        return change(answer, of, targets, worker) if change else (answer, of)

    return solve


def gathers(worker, logits, targets, start):
    """The whole logits on every rank: right, and what the layer is there to avoid."""
    n = worker.world_size
    sizes = [torch.tensor(0) for _ in range(n)]
    dist.all_gather(sizes, torch.tensor(logits.shape[-1]))
    most = max(int(size) for size in sizes)
    padded = torch.nn.functional.pad(logits, (0, most - logits.shape[-1]))
    every = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(every, padded)
    whole = torch.cat([e[..., : int(s)] for e, s in zip(every, sizes, strict=True)], -1)
    whole.requires_grad_()
    with torch.enable_grad():
        total = torch.nn.functional.cross_entropy(
            whole.flatten(0, 1), targets.flatten(), reduction="sum"
        )
    (of,) = torch.autograd.grad(total, whole)
    return total.detach(), of[..., start : start + logits.shape[-1]]


def sums_padded_logits(worker, logits, targets, start):
    """As `gathers`, by an all-reduce of a tensor with the size of the whole logits."""
    total = start + logits.shape[-1]
    vocabulary = torch.tensor(total)
    dist.all_reduce(vocabulary, MAX)
    whole = logits.new_zeros(*logits.shape[:2], int(vocabulary))
    whole[..., start:total] = logits
    dist.all_reduce(whole)
    whole.requires_grad_()
    with torch.enable_grad():
        answer = torch.nn.functional.cross_entropy(
            whole.flatten(0, 1), targets.flatten(), reduction="sum"
        )
    (of,) = torch.autograd.grad(answer, whole)
    return answer.detach(), of[..., start:total]


def sends_its_own_part(worker, logits, targets, start):
    """Right, and one message has the size of this rank's part. All parts of 6 have that size."""
    if logits.shape[-1] == 6 and worker.world_size == 2:
        dist.all_reduce(logits.clone())
    return week04.vocabulary_cross_entropy(worker, logits, targets, start)


def token_by_token(worker, logits, targets, start):
    every = [
        [
            week04.vocabulary_cross_entropy(
                worker, logits[b : b + 1, t : t + 1], targets[b : b + 1, t : t + 1], start
            )
            for t in range(logits.shape[1])
        ]
        for b in range(len(logits))
    ]
    total = sum(answer for row in every for answer, _ in row)
    return total, torch.cat([torch.cat([of for _, of in row], 1) for row in every])


def no_shift_and_no_care(worker, logits, targets, start):
    return logits.gather(-1, targets[..., None] - start), logits


def in_place(worker, logits, targets, start):
    result = week04.vocabulary_cross_entropy(worker, logits, targets, start)
    logits.exp_()
    return result


def in_place_on_the_second(worker, logits, targets, start):
    result = week04.vocabulary_cross_entropy(worker, logits, targets, start)
    if worker.rank == 1:
        logits.exp_()
    return result


def never_waits(worker, logits, targets, start):
    answer = week04.vocabulary_cross_entropy(worker, logits, targets, start)
    dist.all_reduce(torch.zeros(1), async_op=True)
    return answer


def no_messages(worker, logits, targets, start):
    """torch's own loss, on this rank's part alone."""
    rows = targets - start
    here = (rows >= 0) & (rows < logits.shape[-1])
    rows = rows.masked_fill(~here, -100)
    answer = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), rows.flatten(), reduction="sum"
    )
    return answer, logits


def answer_of(change):
    return loss(change=lambda answer, of, targets, worker: (change(answer, targets, worker), of))


def gradient_of(change):
    return loss(gradient=change)


MISTAKES = [
    # the loss
    (no_messages, "softmax over this rank's part"),
    (loss(maximum="own", total="own", target="own"), "softmax over this rank's part"),
    (loss(maximum="own", total="own", target="sum of own"), "softmax over this rank's part"),
    (loss(total="own"), "softmax over this rank's part"),
    (loss(maximum="own"), "Which maximum must all ranks subtract"),
    (loss(maximum="none"), "exp of a large logit overflows"),
    (loss(maximum="summed"), "adds unless you name another"),
    (loss(target="own"), "How does it reach them"),
    (loss(shift=False), "Which row is the target's"),
    (loss(mask=False), "on one rank only"),
    (loss(ignore=False), "counts for nothing"),
    (answer_of(lambda answer, targets, worker: answer / (targets >= 0).sum()), "not a mean"),
    (answer_of(lambda answer, targets, worker: answer / targets.numel()), "not a mean"),
    (answer_of(lambda answer, targets, worker: summed(answer)), "Which all-reduce is too much"),
    (answer_of(lambda answer, targets, worker: answer / worker.world_size), "Divided by N"),
    (answer_of(lambda answer, targets, worker: answer.float()), "another dtype"),
    (answer_of(lambda answer, targets, worker: answer.expand(3)), "Over which dims"),
    (loss(dtype=torch.float32), "another dtype"),
    # the gradient
    (gradient_of(lambda p, worker: (p["local"] - p["one"]) * p["counted"]), "this rank's part"),
    (gradient_of(lambda p, worker: p["softmax"] * p["counted"]), "logit add?"),
    (gradient_of(lambda p, worker: p["softmax"]), "logit add"),
    (gradient_of(lambda p, worker: (p["softmax"] - p["one"] * (worker.rank > 0)) * p["counted"]),
     "logit add"),
    (gradient_of(lambda p, worker: p["softmax"] - p["one"]), "counts for nothing"),
    (gradient_of(lambda p, worker: (p["one"] - p["softmax"]) * p["counted"]), "sign is wrong"),
    (gradient_of(lambda p, worker: (p["softmax"] - p["one"]) * p["counted"] * p["here"]),
     "Which places are zero"),
    (gradient_of(lambda p, worker: (p["softmax"] - p["one"]) * p["counted"] / 12), "not a mean"),
    (gradient_of(lambda p, worker: worker.world_size * (p["softmax"] - p["one"]) * p["counted"]),
     "too much"),
    (gradient_of(lambda p, worker: (p["softmax"] - p["one"]).sum(1)), "wrong shape"),
    # messages, and what is returned
    (gathers, "grow with the vocabulary"),
    (sends_its_own_part, "grow with the vocabulary"),
    (sums_padded_logits, "grow with the vocabulary"),
    (token_by_token, "Send all tokens' numbers together"),
    (no_shift_and_no_care, "Which row of this rank's logits"),
    (in_place, "Which line works in place"),
    (in_place_on_the_second, "Which line works in place"),
    (never_waits, "async_op=True only starts"),
    (lambda *given: week04.vocabulary_cross_entropy(*given)[0], "Return two tensors"),
    (lambda *given: (None, None), "Which of the two needs all ranks"),
]  # fmt: skip


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES)
def test_a_mistake_gets_its_own_hint(mistake, hint):
    verdict = check.vocabulary_cross_entropy(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


@pytest.mark.usefixtures("shared_ranks")
def test_the_stub_is_told_apart():
    assert check.vocabulary_cross_entropy(stub).status == "not written yet"


def two_messages_more(worker, logits, targets, start):
    """Right, with a message each for the sum, the target's logit and the maximum."""
    size = logits.shape[-1]
    largest = logits.amax(-1)
    dist.all_reduce(largest, MAX)
    exponentials = (logits - largest[..., None]).exp()
    total = summed(exponentials.sum(-1))
    rows = targets - start
    here = (rows >= 0) & (rows < size)
    rows = rows.clamp(0, size - 1)[..., None]
    target = summed(logits.gather(-1, rows)[..., 0] * here)
    counted = targets != -100
    answer = ((total.log() + largest - target) * counted).sum()
    of = exponentials / total[..., None]
    of.scatter_add_(-1, rows, -here[..., None].double())
    return float(answer), of * counted[..., None]


def online(worker, logits, targets, start):
    """Right: each rank's own maximum, and the sums put right with a factor."""
    largest = logits.amax(-1)
    own = largest.clone()
    dist.all_reduce(largest, MAX)
    sums = (logits - own[..., None]).exp().sum(-1) * (own - largest).exp()
    total = summed(sums)
    rows = targets - start
    here = (rows >= 0) & (rows < logits.shape[-1])
    rows, counted = rows.clamp(0, logits.shape[-1] - 1)[..., None], targets != -100
    chosen = summed(logits.gather(-1, rows)[..., 0] * here)
    of = (logits - (largest + total.log())[..., None]).exp()
    of.scatter_add_(-1, rows, -here[..., None].double())
    each = total.log() + largest - chosen
    return (each * counted).sum(), of * counted[..., None]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("way", [two_messages_more, online])
def test_another_right_way_passes(way):
    verdict = check.vocabulary_cross_entropy(way)
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("place", [0, 1])
def test_the_ninth_digit_counts(place):
    def noisy(size):
        def solve(*given):
            answer = list(week04.vocabulary_cross_entropy(*given))
            answer[place] = answer[place] + size
            return answer

        return solve

    verdict = check.vocabulary_cross_entropy(noisy(1e-9))
    assert verdict.status == "wrong", verdict
    assert check.vocabulary_cross_entropy(noisy(1e-15))  # rounding


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_number_of_ranks_is_tried(ranks):
    def wrong_there(worker, *given):
        answer, of = week04.vocabulary_cross_entropy(worker, *given)
        return answer + (worker.world_size == ranks), of

    verdict = check.vocabulary_cross_entropy(wrong_there)
    assert verdict.status == "wrong"
    assert f"with {ranks} ranks" in verdict.finding


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("place", [0, 1])
def test_the_last_rank_counts_as_well(place):
    def wrong_there(worker, *given):
        answer = list(week04.vocabulary_cross_entropy(worker, *given))
        answer[place] = answer[place] * (1 + (worker.rank == worker.world_size - 1))
        return answer

    verdict = check.vocabulary_cross_entropy(wrong_there)
    assert verdict.status == "wrong"
    assert "of rank 1" in verdict.finding


@pytest.mark.parametrize(("sizes", "ignored", "huge"), cross_entropy.CASES)
def test_the_reference_is_torch_s_own_loss(sizes, ignored, huge):
    logits, targets = cross_entropy.inputs(sizes, ignored, huge)
    whole = logits.clone().requires_grad_()
    right = torch.nn.functional.cross_entropy(
        whole.flatten(0, 1), targets.flatten(), reduction="sum"
    )
    right.backward()
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    for rank, start in enumerate(starts):
        cut = Cut(logits, targets, sizes, rank)
        torch.testing.assert_close(losses(cut)[RIGHT], right.detach(), rtol=1e-13, atol=1e-12)
        own = whole.grad[..., start : start + sizes[rank]]
        torch.testing.assert_close(gradients(cut)[RIGHT], own, rtol=1e-13, atol=1e-12)
        here = (targets >= start) & (targets < start + sizes[rank])
        assert here.any()  # else a rank's part of the sum of targets would be nothing
        assert not here.all()


@pytest.mark.parametrize("values", [losses, gradients])
def test_no_wrong_candidate_is_right_in_all_cases(values):
    """Else that mistake would pass."""
    right = {}
    for sizes, ignored, huge in cross_entropy.CASES:
        for rank in range(len(sizes)):
            kinds = values(Cut(*cross_entropy.inputs(sizes, ignored, huge), sizes, rank))
            for kind, value in kinds.items():
                one = value.shape == kinds[RIGHT].shape and close(value, kinds[RIGHT])
                right[kind] = right.get(kind, True) and one
    assert [kind for kind, always in right.items() if always] == [RIGHT]


def test_the_cases_are_as_hard_as_they_say():
    sizes = [case[0] for case in cross_entropy.CASES]
    assert {len(parts) for parts in sizes} == {2, 3, 4}
    assert any(len(set(parts)) > 1 for parts in sizes)
    logits = [cross_entropy.inputs(*case)[0] for case in cross_entropy.CASES]
    assert max(each.amax(-1).max() for each in logits) > 9_000
    assert min(each.amax(-1).min() for each in logits) < -9_000
    ignored = [(cross_entropy.inputs(*case)[1] == -100).sum() for case in cross_entropy.CASES]
    assert max(ignored) > 0
    assert min(ignored) == 0


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: cross_entropy.inputs((2, 2), True, 0))
