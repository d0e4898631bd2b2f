"""Start ranks on this machine.

server      the clean process that ranks are forked from
client      the notebook's hold on the server; processes: on the ranks of one cluster
channel     messages between the notebook and a rank
rank        what runs in a rank; network: the ranks' own
call        one call, from the notebook's side; console: what ranks print
interrupt   an interrupt ends a call once

While a call runs, and after it has failed:

listener    a thread in each rank that answers; whereabouts: where the rank is; quiet: does it move
looks       asks silent ranks where they are; deadlock: proves that they can never go on
kept        the ranks of a failed call, stopped; debugger: the rank's end of a session with one
session     the notebook's end, and %debug
"""
