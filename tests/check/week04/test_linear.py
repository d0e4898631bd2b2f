"""Column- and row-parallel layers: the solutions pass, each mistake gets its own hint."""

import pytest
import torch
import torch.distributed as dist

from helpers import check
from helpers.check.week04 import linear
from helpers.comm.regions import copy_to
from helpers.comm.transport import GroupTransport
from notebooks.solutions import week04
from tests.check.asked import drawn_anew
from tests.check.told import told

NAMES = ["column_linear", "row_linear"]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name):
    verdict = getattr(check, name)(getattr(week04, name))
    assert verdict, verdict


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("name", NAMES)
def test_a_stub_and_a_half_written_function(name):
    def stub(worker, x, weight, bias):
        raise NotImplementedError

    def half(worker, x, weight, bias):
        def backward(of_y):
            raise NotImplementedError

        return getattr(week04, name)(worker, x, weight, bias)[0], backward

    for function in (stub, half):
        assert getattr(check, name)(function).status == "not written yet"


def summed(tensor, op=dist.ReduceOp.SUM):
    tensor = tensor.clone()
    dist.all_reduce(tensor, op)
    return tensor


def same(tensor, worker):
    return tensor


def all_reduced(tensor, worker):
    return summed(tensor)


def averaged(tensor, worker):
    return summed(tensor) / worker.world_size


def column(
    *, cut=None, x=same, y=same, of_x=all_reduced, of_weight=same, of_bias=same, of_y=same
):  # fmt: skip
    """The solution, with one part of it changed."""

    def solve(worker, given, weight, bias):
        n, rank = worker.world_size, worker.rank
        if cut:
            weight, bias = cut(weight, bias, rank, n)
        else:
            weight, bias = weight.chunk(n)[rank], bias.chunk(n)[rank]
        out = y(x(given, worker) @ weight.t() + bias, worker)

        def backward(gradient):
            gradient = of_y(gradient, worker)
            own = gradient.flatten(0, 1).t() @ given.flatten(0, 1)
            return (
                of_x(gradient @ weight, worker),
                of_weight(own, worker),
                of_bias(gradient.sum((0, 1)), worker),
            )

        return out, backward

    return solve


def whole_layer(worker, x, weight, bias):
    """Every rank computes the plain layer; no message, and the right numbers."""
    n, rank = worker.world_size, worker.rank

    def backward(of_y):
        every = [torch.empty_like(of_y) for _ in range(n)]
        dist.all_gather(every, of_y)
        whole = torch.cat(every, -1)
        return whole @ weight, of_y.flatten(0, 1).t() @ x.flatten(0, 1), of_y.sum((0, 1))

    return (x @ weight.t() + bias).chunk(n, -1)[rank], backward


def transposed_column(worker, x, weight, bias):
    """W[:, group] has the shape that x @ W needs where D = F; elsewhere the sizes do not fit."""
    if weight.shape[0] != weight.shape[1]:
        return week04.column_linear(worker, x, weight, bias)
    return week04.column_linear(worker, x, weight.t().contiguous(), bias)


def never_waits(worker, x, weight, bias):
    n, rank = worker.world_size, worker.rank
    weight, bias = weight.chunk(n)[rank], bias.chunk(n)[rank]

    def backward(of_y):
        of_x = of_y @ weight
        dist.all_reduce(of_x, async_op=True)
        return of_x, of_y.flatten(0, 1).t() @ x.flatten(0, 1), of_y.sum((0, 1))

    return x @ weight.t() + bias, backward


def in_place(worker, x, weight, bias):
    y, backward = week04.column_linear(worker, x, weight, bias)

    def doubles(of_y):
        result = backward(of_y)
        of_y.mul_(2)
        return result

    return y, doubles


def twice(tensor, worker):
    return summed(summed(tensor))


def in_pieces(tensor, worker):
    return torch.stack([summed(row) for row in tensor])


def rows_of_the_first(weight, bias, rank, n):
    return weight.chunk(n)[0], bias.chunk(n)[0]


def strided_rows(weight, bias, rank, n):
    return weight[rank::n], bias[rank::n]


def first_bias(weight, bias, rank, n):
    return weight.chunk(n)[rank], bias.chunk(n)[0]


def wrong_dim(weight, bias, rank, n):
    return weight.chunk(n, dim=1)[rank], bias.chunk(n)[rank]


def float32(tensor, worker):
    return tensor.float()


COLUMN = [
    (column(of_x=same), "the gradient of x is a sum over the ranks"),
    (column(of_x=averaged), "is its gradient a sum or a mean"),
    (column(of_x=twice), "Summed once too often"),
    (column(x=all_reduced), "In which direction does a copy of x need a sum"),
    (column(y=all_reduced), "You sum in the forward"),
    (column(x=averaged), "Which message can you leave out"),
    (column(cut=lambda weight, bias, rank, n: (weight, bias)), "rows of W are this rank's own"),
    (column(cut=rows_of_the_first), "another rank's outputs"),
    (column(cut=strided_rows), "neighbours"),
    (column(cut=first_bias), "own number of the bias"),
    (column(cut=lambda w, b, rank, n: (w.chunk(n)[rank], 0 * b.chunk(n)[rank])), "number of the"),
    (column(cut=wrong_dim), "which dim of W belongs to the outputs"),
    (column(of_weight=all_reduced), "which other rank has this group"),
    (column(of_weight=lambda t, worker: t.t()), "transposed"),
    (column(of_weight=lambda t, worker: t / worker.world_size), "belongs to one rank"),
    (column(of_bias=averaged), "which other rank has this group"),
    (column(of_bias=lambda t, worker: t / 6), "added, or averaged"),
    (column(of_y=all_reduced), "its own outputs"),
    (column(of_x=in_pieces), "One all-reduce is enough"),
    (column(of_x=lambda t, worker: summed(t).float()), "another dtype"),
    (column(y=float32), "another dtype"),
    (column(y=lambda t, worker: t[0]), "A wrong shape"),
    (column(y=lambda t, worker: None), "is not a tensor"),
    (transposed_column, "outputs are rows of W"),
    (whole_layer, "Which collective adds them up"),
    (never_waits, "async_op=True only starts"),
    (in_place, "Which tensor is your own"),
    (lambda worker, x, weight, bias: x, "Return y and a function"),
    (lambda worker, *given: (week04.column_linear(worker, *given)[0], lambda of_y: of_y),
     "Return y and a function"),
]  # fmt: skip


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), COLUMN)
def test_column_linear(mistake, hint):
    told(check.column_linear(mistake), hint)


def row(
    *, columns=None, before=False, y=all_reduced, bias_of=same, of_x=same, of_weight=same,
    of_bias=same, of_y=same,
):  # fmt: skip
    """The solution, with one part of it changed."""

    def solve(worker, x, weight, bias):
        n, rank = worker.world_size, worker.rank
        weight = columns(weight, rank, n) if columns else weight.chunk(n, 1)[rank]
        out = x @ weight.t()
        added = bias_of(bias, worker)
        out = y(out + added, worker) if before else y(out, worker) + added

        def backward(gradient):
            gradient = of_y(gradient, worker)
            own = gradient.flatten(0, 1).t() @ x.flatten(0, 1)
            return (
                of_x(gradient @ weight, worker),
                of_weight(own, worker),
                of_bias(gradient.sum((0, 1)), worker),
            )

        return out, backward

    return solve


def gathers_inputs(worker, x, weight, bias):
    """Right numbers: the plain layer on every rank."""
    n, rank = worker.world_size, worker.rank
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    own = weight.chunk(n, 1)[rank]

    def backward(of_y):
        return of_y @ own, of_y.flatten(0, 1).t() @ x.flatten(0, 1), of_y.sum((0, 1))

    return torch.cat(every, -1) @ weight.t() + bias, backward


def transposed_row(worker, x, weight, bias):
    square = weight.shape[0] == weight.shape[1]
    return week04.row_linear(worker, x, weight.t() if square else weight, bias)


def hangs(worker, x, weight, bias):
    if worker.rank == 0:
        dist.all_reduce(torch.zeros(1))
    return week04.row_linear(worker, x, weight, bias)


def bias_on_rank_0(worker, x, weight, bias):
    """Right as well: the bias is in the sum once."""
    weight = weight.chunk(worker.world_size, 1)[worker.rank]
    y = x @ weight.t() + (bias if worker.rank == 0 else 0)
    dist.all_reduce(y)

    def backward(of_y):
        return of_y @ weight, of_y.flatten(0, 1).t() @ x.flatten(0, 1), of_y.sum((0, 1))

    return y, backward


def by_autograd(worker, x, weight, bias):
    """Right: the course's f, and autograd's gradients."""
    own = [part.chunk(worker.world_size)[worker.rank].clone() for part in (weight, bias)]
    leaves = [tensor.requires_grad_() for tensor in (x.clone(), *own)]
    with torch.enable_grad():
        y = copy_to(leaves[0], GroupTransport()) @ leaves[1].t() + leaves[2]
    return y, lambda of_y: torch.autograd.grad(y, leaves, of_y)


def overlapped(worker, x, weight, bias):
    """Right: the sum is under way while the weight's gradient is computed."""
    n, rank = worker.world_size, worker.rank
    weight, bias = weight.chunk(n)[rank], bias.chunk(n)[rank]

    def backward(of_y):
        of_x = of_y @ weight
        work = dist.all_reduce(of_x, async_op=True)
        of_weight = of_y.flatten(0, 1).t() @ x.flatten(0, 1)
        work.wait()
        return of_x, of_weight, of_y.sum((0, 1))

    return x @ weight.t() + bias, backward


ROW = [
    (row(before=True), "How often is it in the sum"),
    (row(y=same), "Which message makes the ranks' parts one y"),
    (row(y=same, before=True, bias_of=lambda b, worker: 0 * b), "Which message makes"),
    (row(y=averaged), "Is y their sum or their mean"),
    (row(y=averaged, before=True), "Is y their sum or their mean"),
    (row(bias_of=lambda b, worker: 0 * b), "Where does the bias come in"),
    (row(columns=lambda weight, rank, n: weight.chunk(n, 1)[0]), "same columns of W"),
    (row(columns=lambda weight, rank, n: weight), "which dim of W belongs"),
    (row(columns=lambda weight, rank, n: weight.chunk(n)[rank]), "which dim of W belongs"),
    (row(of_x=all_reduced), "which other rank has this group"),
    (row(of_y=all_reduced), "does this backward need a message"),
    (row(of_y=averaged), "can you leave out"),
    (row(of_bias=all_reduced), "count N times"),
    (row(of_bias=lambda b, worker: b / worker.world_size), "a share, or all of it"),
    (row(of_bias=lambda t, worker: t / 6), "added, or averaged"),
    (row(of_weight=all_reduced), "which other rank has this group"),
    (row(of_weight=lambda t, worker: t.t()), "transposed"),
    (row(y=in_pieces), "One all-reduce is enough"),
    (transposed_row, "inputs are columns of W"),
    (gathers_inputs, "Which collective adds them up"),
]


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(("mistake", "hint"), ROW)
def test_row_linear(mistake, hint):
    told(check.row_linear(mistake), hint)


def test_a_message_too_many_on_one_rank_hangs_or_does_not_fit(monkeypatch):
    monkeypatch.setattr("helpers.check.oracle.TIMEOUT", 2.0)
    verdict = check.row_linear(hangs)
    assert verdict.status == "wrong", verdict
    assert "same calls" in verdict.hint, verdict


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("row_linear", bias_on_rank_0),
        ("column_linear", by_autograd),
        ("column_linear", overlapped),
    ],
)
def test_another_right_way_passes(name, way):
    verdict = getattr(check, name)(way)
    assert verdict, verdict


def only_with(name, ranks):
    """Right with this number of ranks, and without the sum with any other."""

    def solve(worker, *given):
        if worker.world_size == ranks:
            return getattr(week04, name)(worker, *given)
        return {"column_linear": column(of_x=same), "row_linear": row(y=same)}[name](worker, *given)

    return solve


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_ranks_is_tried(name, ranks):
    def wrong_there(worker, *given):
        other = 2 if ranks != 2 else 3
        world = worker.world_size
        return only_with(name, world if world != ranks else other)(worker, *given)

    verdict = getattr(check, name)(wrong_there)
    assert verdict.status == "wrong"
    assert f"with {ranks} ranks" in verdict.finding


def noisy(name, which, size):
    """The solution, with one number of one of the last rank's answers changed by a little."""

    def solve(worker, *given):
        y, backward = getattr(week04, name)(worker, *given)

        def changed(tensor):
            tensor = tensor.clone()
            tensor.view(-1)[-1] += size * (worker.rank == worker.world_size - 1)
            return tensor

        if which == "y":
            return changed(y), backward

        def wrong(of_y):
            answers = list(backward(of_y))
            answers[which] = changed(answers[which].contiguous())
            return answers

        return y, wrong

    return solve


@pytest.mark.usefixtures("shared_ranks")
@pytest.mark.parametrize("which", ["y", 0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_the_ninth_digit_of_one_number_counts(name, which):
    verdict = getattr(check, name)(noisy(name, which, 1e-9))
    assert verdict.status == "wrong"
    assert "rank 1 has" in verdict.finding
    assert getattr(check, name)(noisy(name, which, 1e-14))  # rounding


@pytest.mark.parametrize("layer", [linear.column, linear.row])
def test_no_two_candidates_are_one(layer):
    """Else a mistake could get the hint of another, or pass."""
    for ranks, width in linear.CASES:
        for rank in range(ranks):
            _, _, candidates, _ = layer(rank, ranks, width)
            for name, kinds in candidates.items():
                right = kinds[linear.RIGHT]
                for kind, value in kinds.items():
                    same_value = right.shape == value.shape and torch.allclose(right, value)
                    own = kind in (linear.RIGHT, f"the outputs of rank {rank}") or kind.endswith(
                        (f"of rank {rank}", f"rank {rank}'s bias")
                    )
                    assert same_value == own, (name, kind)


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: linear.numbers(2, seed=1))
