"""A mixture of experts: most of a model's parameters, few of them for each token.

    x ──► Router ──► Routing: chosen, gates, kept
    x ──► sort ──► spread ──► experts(rows, counts) ──► combine(rows, gates) ──► + shared(x)

routing       scores, the choice, gates; losses that balance; capacity. Functions of tensors
permutation   the order by experts; tokens to rows, and rows back to tokens
product       the experts' products on sorted rows: a loop, or PyTorch's grouped product
layer         Router, Experts and Mixture: the modules
loads         how many tokens each expert got: records of a model that runs

Expert parallelism needs three of their places:

    mixture.experts.begin   called with rows (R, D), sorted by expert, and counts (E,) int64 on the
                            same device. Returns a function that returns (R, D) in the same order,
                            and runs after the shared experts. A replacement may send rows to other
                            ranks, as long as they return in order. The parameters
                            gate and up (E, F, D) and down (E, D, F) are cut along dim 0.
    mixture.router.total    called with counts (B, E) of this rank's tokens of each sequence.
                            Returns those of the whole sequence. The identity, unless a sequence is
                            cut: then the sum over the ranks, without a gradient. Capacity needs
                            whole sequences.
    mixture.router.loads    (E,) int64: tokens that chose each expert since `take_loads`: a sum
                            over micro-batches, and over ranks with different tokens.

The order of rows is that of tokens within each expert, and `combine` adds in the order of a token's
choices. So results do not depend on the order in which rows return.
"""
