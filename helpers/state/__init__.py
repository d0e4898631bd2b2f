"""How a rank's local tensors sit in the plain model; what follows from that alone.

part         a Part: plain name and shape, cuts, flat range, holders, pending sums
placing      how parts are made: whole, only on some stages, cut, flat, pending
pieces       index arithmetic: a part as boxes of the plain tensor
slicing      between a whole tensor and a part, on one rank
first_values those of the plain model, one whole tensor at a time
decay        which parts decay
all_parts    the parts of every rank
check        whether they make up the plain model
facts        small facts between ranks, as JSON
reshard      from one layout to any other
gather       every tensor whole, on every rank
full_state   parameters and optimizer state, whole
load         from whole tensors to parts
pending      pending sums, completed once
norm         the global norm, and clipping
"""
