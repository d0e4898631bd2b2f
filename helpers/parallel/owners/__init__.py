"""Who holds parameters, gradients and optimizer state, and updates them.

local    this rank holds all of it; what is pending is summed after the backward
`helpers.parallel.ddp` holds the replicated ones.
"""
