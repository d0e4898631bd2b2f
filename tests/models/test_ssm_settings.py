"""The sizes of the mixers: the papers' defaults, and errors for what does not divide."""

import pytest

from helpers.models.ssm_settings import MAMBA, MAMBA2, Mamba2Settings, MambaSettings


def test_mambas_defaults_are_published():
    """Gu and Dao 2023, section 3.4 and appendix E: E = 2 D, N = 16; the code's rank is D/16."""
    settings = MambaSettings()
    assert (settings.state, settings.expand, settings.convolution) == (16, 2, 4)
    assert settings.channels(768) == 1536
    assert settings.rank_of(768) == 48
    assert settings.rank_of(100) == 7  # 6.25, rounded up
    assert MambaSettings(rank=5).rank_of(768) == 5


def test_mamba2s_defaults_are_published():
    """The defaults of `Mamba2` in the authors' code: N = 128, P = 64, one group."""
    settings = Mamba2Settings()
    assert (settings.state, settings.head, settings.groups) == (128, 64, 1)
    assert (settings.expand, settings.convolution, settings.chunk) == (2, 4, 64)
    assert (settings.channels(768), settings.heads(768)) == (1536, 24)
    assert Mamba2Settings(head=8, groups=3).heads(12) == 3
    assert Mamba2Settings(expand=3).channels(64) == 192
    assert (MambaSettings(), Mamba2Settings()) == (MAMBA, MAMBA2)


def test_what_does_not_divide():
    with pytest.raises(ValueError, match=r"heads of 64 channels do not divide 96 .*width of 48"):
        Mamba2Settings().heads(48)
    with pytest.raises(ValueError, match="4 mamba2 groups do not divide 6 heads"):
        Mamba2Settings(head=8, groups=4).heads(24)


@pytest.mark.parametrize("size", [0, -1, 2.0, "4"])
@pytest.mark.parametrize("field", ["state", "expand", "convolution", "rank"])
def test_mambas_sizes_are_positive_whole_numbers(field, size):
    with pytest.raises(ValueError, match=f"MambaSettings: {field} must be a positive whole number"):
        MambaSettings(**{field: size})


@pytest.mark.parametrize("size", [0, None, 1.5])
@pytest.mark.parametrize("field", ["state", "expand", "convolution", "head", "groups", "chunk"])
def test_mamba2s_sizes_are_positive_whole_numbers(field, size):
    with pytest.raises(ValueError, match=f"Mamba2Settings: {field} must be a positive whole"):
        Mamba2Settings(**{field: size})
