"""Plan training for a cluster that you do not have.

`problem.Problem` and `solve.solve`: one strategy for each node, at the least cost, within memory.
`iopddl`: the same for the files of a public contest.
"""
