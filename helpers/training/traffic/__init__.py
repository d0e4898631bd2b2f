"""Who sends what when: each message of a step, by layer and phase, for any strategy.

record        watch one step of a strategy on this rank
recorder      find a message's layers, kind and phase
contents      find the parameters or the gradients that a message contains
diff          messages as plain data; align those of several strategies, layer by layer
"""
