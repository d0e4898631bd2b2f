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
    ratios = {name: round(model.tokens_per_param, 1) for name, model in by_name.items()}
    assert ratios == {
        "GPT-3": 1.7, "Gopher": 1.1, "Chinchilla": 20, "Llama 1 7B": 149.3, "Llama 1 65B": 21.5,
        "Llama 2 7B": 285.7, "Llama 2 70B": 28.6, "Llama 3 405B": 38.5,
    }  # fmt: skip
    # their tables print these many FLOPs, or these many tokens for the size in the name
    for name, model in by_name.items():
        if name.endswith("B"):
            assert model.params == pytest.approx(1e9 * float(name.split()[-1][:-1]), rel=0.05)
