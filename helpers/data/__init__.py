"""What is trained on: real text and digits, tokens, and who gets which of them.

batch    tokens and their targets; a rank's part of them, micro-batches
corpus   text as a `datasets.Dataset`: what every Python carries, off line; WikiText, on line
tokens   bytes as tokens; byte-pair encoding
blocks   documents packed into a stream of tokens on disk, cut into blocks of equal length
source   blocks in an order: batches for a training loop
order    which samples are in global batch k, the same on any number of ranks
sampler  each rank's samples of an epoch, as torch's DistributedSampler gives them
digits   pictures of digits: scikit-learn's, off line; MNIST, on line
hub      datasets of the Hub, or a word within seconds about why not
cache    where computed files are kept, safe for several ranks at once

    blocks = pack("python", length=128)
    order = Order(len(blocks), batch=32, seed=0)
    batch = blocks.batch(order.shard(k, worker.rank, worker.world_size))

Importing them is cheap: `datasets`, `tokenizers` and scikit-learn are imported where they are
needed, and a rank that opens packed blocks needs none.
"""
