"""Training loop, learning-rate schedule, equivalence tests, communication trace, task farm.

loop, schedule           train any strategy; warm-up and cosine
twin, comparison         compare a strategy with one process, step by step
locate, guess, witness   the first rank, pass and module that departs from the twin
drift                    replicas that should agree, and do not
mesh_order               a step on nodes with paced links, in any order of the axes
traffic                  who sends what when: each message by layer and phase
farm                     many trainings, each in a process of its own
"""
