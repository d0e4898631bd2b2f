"""Rendezvous and heartbeat: join the ranks that torchrun, accelerate, srun or mpiexec started.

member      this process as one of those ranks, with their process group
rendezvous  the key-value store where the ranks meet, and the secret that proves them
heartbeat   how each rank learns of the others' failures (failure detector, watchdog)
job         a call as a folder: saved in a notebook, run on a cluster, read back
"""
