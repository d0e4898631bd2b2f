"""Run one function on many ranks.

server      the clean process that ranks are forked from
client      the notebook's hold on the server; processes: on the ranks of one cluster
channel     messages between the notebook and a rank
payload     functions, arguments and results as bytes; blame: what in them cannot travel
worker      what runs in a rank
call        listening to the ranks: console (prints), screen (progress), failure and stacks (errors)
interrupt   an interrupt ends a call once; folder: private, and gone with the notebook
cluster     ranks that live on; launch: a cluster of one call; runs: what comes back

launcher    which rank torchrun, accelerate, srun or mpiexec made of this process, if any
member      this process as that rank: meeting, gpus, and watch, which learns of others' failures
torchrun    a call as a folder: saved here, run on a cluster, read back
"""
