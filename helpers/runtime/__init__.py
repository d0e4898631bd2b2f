"""Run one function on many ranks.

server      the clean process that ranks are forked from
processes   the notebook's hold on the server and on the ranks
channel     messages between the notebook and a rank
payload     functions, arguments and results as bytes; blame: what in them cannot travel
worker      what runs in a rank
call        listening to the ranks: console (prints), screen (progress), failure and stacks (errors)
cluster     ranks that live on; launch: a cluster of one call; runs: what comes back
"""
