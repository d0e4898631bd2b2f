"""Plan training for a cluster that you do not have.

problem         one strategy for each node, at the least cost, within a memory limit
reduce          make a problem smaller without losing its optimum
program         its integer program, for HiGHS
ascent          a bound and a first choice of a large problem
search          improve a choice by parts, where the whole is too large
solve           all of these
iopddl          the same for the files of a public contest, by the command line
strategies      how devices share an operator: messages, memory, resharding
operators       of a GPT's and a Bamba's layers
intra_operator  a strategy for each operator
inter_operator  stages of layers on submeshes
alpa            both together
plan            every layout of a cluster by the simulator: the front of time against memory
executed        a plan as a Recipe; a planned pipeline measured beside the equal split
"""
