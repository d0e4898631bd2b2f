import pytest

from helpers.scaling.published import MODELS


def test_models_are_points():
    by_name = {model.name: model for model in MODELS}
    assert len(by_name) == len(MODELS)
    assert all("arXiv:" in model.source for model in MODELS)
    # Brown et al. 2020, table D.1: 3.14e23 FLOPs for GPT-3 (its 174.6B parameters rounded up here)
    assert by_name["GPT-3"].compute == pytest.approx(3.14e23, rel=0.01)
    # Grattafiori et al. 2024, section 1: 3.8e25 FLOPs
    assert by_name["Llama 3 405B"].compute == pytest.approx(3.8e25, rel=0.01)
    assert by_name["Chinchilla"].tokens_per_param == 20
