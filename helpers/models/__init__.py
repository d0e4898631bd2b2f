"""GPT, Llama, Mamba, VAE: language models short to read, with exact counts, not distributed.

shape, settings, gpt   the configuration and the Transformer: decoder-only, RMSNorm, SwiGLU
attention, latent      grouped-query attention with rotary positions; multi-head latent attention
blockwise, attention_kernel              attention block by block; its forward in Triton
mamba, mamba2, bamba   state space models, and a hybrid with attention; `scan/` has their scans
mlp, experts/          the MLPs of a block: one, or a mixture of experts
caches/                KV caches, and the recurrent states
counts                 parameters, bytes of a cache, FLOPs per token
initialization, dropout, noise           random numbers that no layout of ranks changes
vae                    a variational autoencoder
trained/, published    models that the course trained; shapes of published ones
"""
