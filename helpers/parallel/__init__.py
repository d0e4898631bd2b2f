"""Parallelism: data (DDP, ZeRO, FSDP), tensor, sequence, context, expert, pipeline; precision.

One Strategy protocol, and one Trainer that implements it with four seams.

strategy   the protocol of every strategy: a step, its state, checkpoints
trainer    a step: count, engine, pending sums, norm, update, publish; and the Recipe of its seams
transform  the transform that changes nothing; the empty recipe is the single process (`single`)
composed   fills the seams by a layout: tensor, context, expert, pipeline, then data parallel
tensor/    transforms: layers cut over the axis "tp"
cut_sequence/  context parallelism: a sequence cut over ranks; ring attention, Ulysses, scans
mixture/   expert parallelism: experts cut over ranks, rows sent to them by all-to-alls
pipeline/  a transform that cuts the model into stages, and the engine that runs their schedule
engines/   order forward and backward; gradient accumulation
owners/    hold parameters, gradients and optimizer state; ddp/ replicates them, zero/ shards them
units      pieces of a model that an owner gathers, frees, loads or stores together
muon/      Muon's owner: each rank orthogonalises the updates of some matrices
balance    the bias that balances experts without a loss
precision  the format in which a model computes, and that of its updates: bf16, fp16, fp8
offload/   the optimizer's state in host memory or on disk; updates beside the computation
optimizer  the update rule, clipping
world      operations over all ranks' parts; a number summed over ranks
libraries/ strategies of other libraries, behind the same protocol

    trainer = Recipe(owner=Replicated, precision=Mixed())(config, seed=0, mesh=mesh)
"""
