"""Fault tolerance: checkpoint intervals, goodput, fault traces, spot instances, silent corruption.

interval      Young's, Daly's and the exact interval between checkpoints; expected goodput
faults        when real clusters failed: 400 servers for a year, Llama 3's 54 days
replay        training under a list of faults, with spare servers and with eviction
spot          instances that may be taken away: traces, policies, what they cost
in_memory     checkpoints in memory, with a copy on another rank
crew          ranks that go on without the lost ones: epochs, members, a new group
agent         starts ranks that may die one by one
survive       training on a crew: no restart, the curve of an undisturbed run
audit         checkpoints that are whole and yet wrong; `lies` plants seven of them
straggler     the rank that the others wait for
replicas      which replica's numbers were silently changed
"""
