"""Join the ranks that a launcher started.

member      this process as one of those ranks
meeting     the store where the ranks meet; key: the secret that proves them; gpus: a GPU per rank
results     the ranks' results, as plain data
watch       how each rank learns of the others' failures
job         a call as a folder: saved in a notebook, run on a cluster, read back
"""
