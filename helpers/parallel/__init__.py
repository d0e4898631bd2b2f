"""Training strategies: the Strategy protocol, and one Trainer that implements it with four seams.

strategy   the protocol of every strategy
trainer    a step: count, engine, pending sums, norm, update, publish
recipe     names the seams; the empty recipe is the single process
composed   fills the seams by a layout: tensor, then pipeline, then data parallel
tensor/    transforms: layers cut over the axis "tp"
cut_sequence/  state space models on a sequence cut over ranks
pipeline/  a transform that cuts the model into stages, and the engine that runs their schedule
engines/   order forward and backward
owners/    hold parameters, gradients and optimizer state; ddp/ has the replicated owners
precision  the format in which a model computes, and the format of its updates
optimizer  the update rule
libraries/ strategies of other libraries, behind the same protocol

    trainer = Recipe(owner=Replicated, precision=Mixed())(config, seed=0, mesh=mesh)
"""
