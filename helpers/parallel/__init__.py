"""Ways to train: the Strategy protocol, and one Trainer that implements it with four seams.

strategy   what every way to train promises
trainer    a step: count, engine, pending sums, norm, update, publish
recipe     names the seams; the empty recipe is the single process
engines/   who orders forward and backward
owners/    who holds parameters, gradients and optimizer state; ddp/: the replicated ones
precision  in which format a model computes, and in which it is updated
optimizer  the update rule
libraries/ the ways of others, behind the same protocol

    trainer = Recipe(owner=Replicated, precision=Mixed())(config, seed=0, mesh=mesh)
"""
