"""Ranks on this machine (multiprocessing): start, inter-process communication, watchdog, end.

start       the ranks of a cluster; call: one call, on the notebook's side
channel     messages between the notebook and a rank (IPC over a socket pair)
network     a network namespace for the ranks alone
console     the output of the ranks; interrupt: an interrupt ends a call once
sources     notices edited files
session     ranks of a failed call, kept for a debugger; %debug

forkserver/ starts, signals and cleans up processes
rank/       the program of a rank
hangs/      watches silent ranks, and proves a deadlock

Imports go from this folder to `forkserver`, then to `rank`, `hangs`, `network` and `channel`.
"""
