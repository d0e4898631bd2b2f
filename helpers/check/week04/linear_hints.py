"""What the wrong numbers and messages of a parallel linear layer say about the mistake."""

from helpers.check.week04.kinds import ROUNDED

SUMMED = ("N times the products", "N times the right one")


def hint_value(exercise: str, name: str, run, phase: str) -> str:
    """The hint for a wrong value, by its kind and by the messages of the phase."""
    kind, sent = run[name], run["messages"][phase]
    if kind == ROUNDED:
        return "The inputs are in float64. Which line makes a tensor of another dtype?"
    if kind.startswith("no tensor"):
        return f"`{name}` is not a tensor. What does your last line return?"
    by_name = {
        ("column_linear", "y"): column_output,
        ("column_linear", "of_x"): column_input,
        ("row_linear", "y"): row_output,
        ("row_linear", "of_bias"): row_bias,
    }
    hint = by_name.get((exercise, name), own_gradient)(kind, sent)
    return hint or (
        "Write the layer for N = 1 first, with its three gradients. Then write beside each tensor "
        "whether a rank has all of it, a group of it, or a part of a sum."
    )


def column_output(kind: str, sent) -> str:
    if kind in SUMMED or (sent and "sum" in kind):
        return (
            "You sum in the forward. Every rank has the whole x already, and no two ranks compute "
            "the same output. In which direction does a copy of x need a sum?"
        )
    if kind == "all outputs":
        return "Every rank computes all outputs. Which rows of W are this rank's own?"
    if kind == "every N-th output":
        return "The groups are neighbours: the first F/N outputs on rank 0. Yours are strided."
    if kind.startswith("the outputs of"):
        return "These are another rank's outputs. On which number does the cut depend?"
    if "bias" in kind:
        return "Each output has its own number of the bias. Which F/N numbers belong to this rank?"
    if "transpose" in kind:
        return "y = x Wᵀ: outputs are rows of W. Which dim did you cut, and which did you multiply?"
    return shape_of(kind)


def column_input(kind: str, sent) -> str:
    if kind == "this rank's part of the sum":
        return (
            "Every rank used x, so the gradient of x is a sum over the ranks. You have this rank's "
            "part. Which message does the backward need?"
        )
    if kind in ("the mean over the ranks", "this rank's part, divided by N"):
        return (
            "Divided by N. A mean belongs to ranks that see different data. Here all ranks are one "
            "layer: is its gradient a sum or a mean?"
        )
    if kind == "N times the right one":
        return "Summed once too often. How many ranks had the whole sum already?"
    if kind.startswith("from summed"):
        return (
            "You summed gradients of y, and each rank has those of its own outputs. Multiply by "
            "this rank's part of W first. Of which tensor does every rank then have a part?"
        )
    return shape_of(kind)


def row_output(kind: str, sent) -> str:
    if kind == "the sum, and N times the bias":
        return "Every rank has added the bias, and then you summed. How often is it in the sum?"
    if kind.startswith("this rank's part"):
        return (
            "Each rank has the products of its own inputs only. Which message makes the ranks' "
            "parts one y?"
        )
    if kind == "the sum, without the bias":
        return "The sum is right. Where does the bias come in, and how often?"
    if "mean" in kind or "divided" in kind:
        return (
            "Divided by N. The ranks' products are parts of one matrix product. Is y their sum or "
            "their mean?"
        )
    if "columns of W" in kind:
        return "Every rank uses the same columns of W. Which columns multiply this rank's inputs?"
    if "transpose" in kind:
        return "y = x Wᵀ: inputs are columns of W. Which dim did you cut, and which did you sum?"
    return shape_of(kind)


def row_bias(kind: str, sent) -> str:
    if kind == "N times the right one":
        return (
            "Every rank has the whole gradient of y, and so the whole gradient of the bias. What "
            "would a sum over ranks count N times?"
        )
    if kind == "the right one, divided by N":
        return "Every rank has the whole bias. Does its gradient need a share, or all of it?"
    return own_gradient(kind, sent)


def own_gradient(kind: str, sent) -> str:
    """A gradient that this rank computes alone, from its own group."""
    if kind == "N times the right one":
        return (
            "Summed over ranks that all had the same numbers. The gradient of y is whole on every "
            "rank: does this backward need a message?"
        )
    if kind in ("the sum over the ranks", "the mean over the ranks"):
        return (
            "You summed groups that belong to different ranks. Only copies of one parameter need "
            "a sum: which other rank has this group?"
        )
    if kind == "the right one, divided by N":
        return "Divided by N. Each number of the gradient belongs to one rank: nothing to share."
    if kind == "the whole gradient":
        return "That is the gradient of all groups. Return this rank's group."
    if kind == "transposed":
        return "A gradient has the shape of its tensor. Yours is transposed."
    if kind == "the mean over the tokens":
        return "Each number of the bias reaches all tokens: are their gradients added, or averaged?"
    if kind.startswith("the gradient of rank"):
        return "This is another rank's group. On which number does the cut depend?"
    return shape_of(kind)


def shape_of(kind: str) -> str:
    if kind.startswith("of shape"):
        return (
            "A wrong shape. Which dims must the result have, and which dims did you sum over, or "
            "forget to sum over or to cut?"
        )
    return ""


def hint_message(exercise: str, phase: str, sent, due: int) -> str:
    """The hint for right numbers with other messages than the layer needs."""
    calls = [name for name, _ in sent]
    if not sent:
        return (
            "No message, so this rank has computed other ranks' parts too. Use this rank's part of "
            "W only: what is then missing?"
        )
    if not due:
        return "Each rank could have computed its result alone. Which message can you leave out?"
    if any(name != "all_reduce" for name in calls):
        return (
            "The ranks have parts of one sum. Which collective adds them up, and gives the result "
            "to all ranks?"
        )
    if len(sent) > 1:
        return "One all-reduce is enough. Which tensor is it that must be summed?"
    return "The all-reduce has another size than B T D numbers. Which tensor must be summed?"
