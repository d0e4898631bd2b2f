"""Start ranks on this machine.

server      the clean process that ranks are forked from
client      the notebook's hold on the server; processes: on the ranks of one cluster
channel     messages between the notebook and a rank
rank        what runs in a rank
call        one call, from the notebook's side; console: what ranks print
interrupt   an interrupt ends a call once
"""
