"""Sharding metadata and sharded state: checkpoints, resharding, global norm, DTensor placements.

A Part says how a rank's local tensor maps to the plain model. The rest follows from parts alone.

part          a Part: plain name and shape, cuts, flat range, holders, pending sums; weight decay
placing       make parts: whole, only on some stages, cut, flat, pending
pieces        index arithmetic: a part as boxes of the plain tensor
slicing       whole tensors into parts on one rank: take, first values, load
all_parts     the parts of every rank, checked that they make up the plain model
accept        check a state before it is loaded: names, shapes, numbers
facts         exchange small facts between ranks, as JSON
pending       gradient synchronization: complete pending sums, each once; the global norm
reshard       convert one layout to any other
full_state    gather tensors, gradients and optimizer state whole on every rank
shares        a picture of which rank holds what
storage       parts as DTensors, where DTensor can represent them; how a checkpoint stores them
checkpoint    distributed checkpoint: save and load with `torch.distributed.checkpoint`
background    save while training goes on: copy the state, and let a thread write it
increments    write only what has changed since the last checkpoint
seal          atomic writing, checksums, and the newest whole checkpoint

A strategy uses them in this order:

    own = {key: part, …}                           # by placing
    parts = AllParts.exchanged(own)                # once: each rank knows all parts
    groups = make_groups(mesh, parts)              # once
    first_values(own, local, make)
    …                                              # forward, backward
    done, gradients = complete(own, gradients, groups)
    norm = global_norm(parts.completed, gradients)
    state = full_state(parts, local, kept)
"""
