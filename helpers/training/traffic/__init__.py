"""Who sends what when: each message of a step, by layer and phase, for any strategy.

message       one message of a step, as plain data
record        watch one step of a strategy on this rank
recorder      find a message's layers, kind and phase
fingerprints  find the parameters whose values a message contains
pending       find the gradients that a message contains, by their order and sizes
diff          align the messages of several strategies, layer by layer
"""
