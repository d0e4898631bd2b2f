"""Describe how each rank's local tensors map to the plain model, and use that description.

part          a Part: plain name and shape, cuts, flat range, holders, pending sums
placing       make parts: whole, only on some stages, cut, flat, pending
pieces        index arithmetic: a part as boxes of the plain tensor
slicing       copy between a whole tensor and a part, on one rank
first_values  initialize parts with the plain model's values, one whole tensor at a time
decay         which parts get weight decay
all_parts     the parts of every rank
check         check that the parts of all ranks make up the plain model
facts         exchange small facts between ranks, as JSON
pending       complete pending sums, each once
norm          the global norm, and clipping
reshard       convert one layout to any other
gather        gather every tensor, or every gradient, whole on every rank
full_state    gather parameters and optimizer state whole
load          copy whole tensors into parts
dtensor       parts as DTensors, where DTensor can represent them
storage       how parts are stored in a checkpoint
checkpoint    save and load with `torch.distributed.checkpoint`

A strategy uses them in this order:

    own = {key: part, …}                           # by placing
    parts = AllParts.exchanged(own)                # once: each rank knows all parts
    groups = make_groups(mesh, parts)              # once
    first_values(own, local, make)
    …                                              # forward, backward
    done, gradients = complete(own, gradients, groups)
    norm = clip(parts.completed, gradients, 1.0)
    state = full_state(parts, local, kept)
"""
