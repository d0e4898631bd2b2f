"""How a rank's local tensors sit in the plain model, and what follows from that alone.

part          a Part: plain name and shape, cuts, flat range, holders, pending sums
placing       how parts are made: whole, only on some stages, cut, flat, pending
pieces        index arithmetic: a part as boxes of the plain tensor
slicing       between a whole tensor and a part, on one rank
first_values  those of the plain model, one whole tensor at a time
decay         which parts decay
all_parts     the parts of every rank; `check` finds those that do not make up the plain model
facts         small facts between ranks, as JSON
pending       pending sums, completed once
norm          the global norm, and clipping
reshard       from one layout to any other
gather        every tensor, or every gradient, whole on every rank
full_state    parameters and optimizer state, whole
load          from whole tensors to parts
dtensor       parts as DTensors, where DTensor can say them
storage       how parts are stored in a checkpoint
checkpoint    saved and loaded by `torch.distributed.checkpoint`

A way to train uses them in this order:

    own = {key: part, …}                           # by placing
    parts = AllParts.exchanged(own)                # each rank knows all, once
    groups = make_groups(mesh, parts)              # once
    first_values(own, local, make)
    …                                              # forward, backward
    done, gradients = complete(own, gradients, groups)
    norm = clip(parts.completed, gradients, 1.0)
    state = full_state(parts, local, kept)
"""
