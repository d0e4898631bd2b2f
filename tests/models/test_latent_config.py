"""The widths of latent attention: DeepSeek-V2's, and what is refused."""

import pytest

from helpers.models.latent_config import Latent

V2 = Latent(kv_rank=512, nope=128, rope=64, value=128)  # DeepSeek-V2, section 3.1.2


def test_widths_of_a_head_of_128_are_those_of_deepseek_v2():
    assert Latent.of(128) == V2
    assert V2.query_rank is None


@pytest.mark.parametrize(("d", "rope"), [(1, 2), (2, 2), (3, 2), (6, 2), (7, 2), (8, 4), (10, 4)])
def test_the_rotated_width_is_even(d, rope):
    assert Latent.of(d) == Latent(kv_rank=4 * d, nope=d, rope=rope, value=d)


@pytest.mark.parametrize("name", ["kv_rank", "query_rank", "nope", "rope", "value"])
@pytest.mark.parametrize("width", [0, -2, 2.0, "2"])
def test_widths_are_positive_whole_numbers(name, width):
    widths = {"kv_rank": 8, "nope": 4, "rope": 2, "value": 4, name: width}
    with pytest.raises(ValueError, match=f"{name} must be a positive whole number, not {width!r}"):
        Latent(**widths)


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="rope must be even, not 3"):
        Latent(kv_rank=8, nope=4, rope=3, value=4)
    with pytest.raises(ValueError, match="values of width 7, but queries and keys have 4"):
        Latent(kv_rank=8, nope=4, rope=2, value=7)
    with pytest.raises(ValueError, match="kv_rank must be a positive whole number, not None"):
        Latent(kv_rank=None, nope=4, rope=2, value=4)
    Latent(kv_rank=8, nope=4, rope=2, value=6)
