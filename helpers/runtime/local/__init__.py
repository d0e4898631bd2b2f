"""Start ranks on this machine.

server      the clean process that forks itself for each rank
client      the notebook's side of the server; processes: its side of one cluster's ranks
channel     messages between the notebook and a rank
rank        the program of a rank; network: a network for the ranks alone
call        one call, on the notebook's side; console: the output of the ranks
interrupt   an interrupt ends a call once

While a call runs, and after it has failed:

listener    a thread in each rank that answers; whereabouts: where the rank is; quiet: does it move
looks       asks silent ranks where they are; deadlock: proves that they can never go on
kept        the ranks of a failed call, stopped; debugger: the rank's side of a debugging session
session     the notebook's side of it, and %debug
"""
