"""Distributed inference: tensor-parallel decoding, disaggregated prefill and decode, KV transfer.

split    one rank's part of a model: heads, MLP columns and vocabulary rows, with its cache
choice   the best token of logits that are cut by vocabulary
decode   greedy decoding on the ranks of a Cluster: tokens, seconds, messages
cost     seconds per token from alpha and beta; the same work without messages

apart    prefill and decode on separate ranks, or together on each
handover the blocks of a paged cache, from one rank to another
streams  when each token came, and the longest time without one
"""
