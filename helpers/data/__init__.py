"""Data loading: tokens, sequence packing, data loader order, distributed sampler, corpora.

batch     tokens and their targets, or pictures; a rank's part of them, micro-batches
corpus    text as a `datasets.Dataset`: the text in every Python, or WikiText from the Hub
tokens    bytes as tokens
blocks    documents packed into a stream of tokens on disk, cut into blocks of equal length
source    blocks or pictures in an order: batches for a training loop
order     which samples are in global batch k, the same on any number of ranks
sampler   each rank's samples of an epoch, as in PyTorch's DistributedSampler
digits    pictures of digits: scikit-learn's, or MNIST from the Hub
licences  the licence of each data set
hub       datasets of the Hub, or within seconds the reason why not
cache     computed files, kept for this user: safe for several ranks at once

    blocks = pack("python", length=128)
    order = Order(len(blocks), batch=32, seed=0)
    batch = blocks.batch(order.shard(k, worker.rank, worker.world_size))

These imports are cheap: functions import `datasets` and scikit-learn when they need them, and a
rank that opens packed blocks needs neither.
"""
