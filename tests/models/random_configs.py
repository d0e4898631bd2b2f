"""Small configurations of every kind, for hypothesis."""

from hypothesis import strategies as st

from helpers.models.gpt import GPTConfig
from helpers.models.settings import Latent, Mamba2Settings, MambaSettings
from helpers.models.shape import CHOICES


@st.composite
def configs(draw):
    """Small configurations of every kind."""
    heads = draw(st.sampled_from([1, 2, 3, 4]))
    head_width = draw(st.sampled_from([2, 4, 6, 8]))
    choices = {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}
    latent = None
    if choices["mixer"] == "latent" and draw(st.booleans()):
        widths = {name: draw(st.integers(1, 5)) for name in ("kv_rank", "nope", "value")}
        rope, rank = draw(st.sampled_from([4, 6])), draw(st.sampled_from([None, 7]))
        latent = Latent(**widths, rope=rope, query_rank=rank)
    sizes = {name: draw(st.integers(1, 3)) for name in ("state", "expand", "convolution")}
    divisors = [kv_heads for kv_heads in range(1, heads + 1) if heads % kv_heads == 0]
    return GPTConfig(
        vocab=draw(st.sampled_from([5, 11])),
        context=draw(st.sampled_from([4, 7])),
        width=heads * head_width,
        layers=draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *divisors])),
        hidden=draw(st.sampled_from([None, 5, 16])),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.3])),
        latent=latent,
        mamba=MambaSettings(**sizes, rank=draw(st.sampled_from([None, 2]))),
        mamba2=Mamba2Settings(**sizes, head=2, chunk=draw(st.sampled_from([1, 3, 8]))),
        **choices,
    )
