"""Inference: decoding, sampling, speculative decoding, continuous batching, disaggregated serving.

sampling     the next token from logits: greedy, temperature, top-k, top-p
reading      a model reads the next tokens of several sequences, each with its own length
generate     several prompts at once, greedily or at random; one prompt as a stream
completion   text that grows in a notebook cell, byte by byte
accept       speculative decoding's arithmetic: accept or resample
speculative  a small model guesses tokens, the target checks all of them in one forward
decoder      the same weights in fewer operators; a compiled decoding step
engine       requests that arrive by a clock share the model's steps and a paged cache
workload     requests that arrive at random, with prompts and answers of random lengths
ranks        tensor-parallel decoding; prefill and decode on separate ranks
"""
