import numpy as np
import pytest

from helpers.scaling.extrapolation import extrapolate
from helpers.scaling.published import MODELS
from helpers.scaling.search import grid


def test_models_are_points():
    by_name = {model.name: model for model in MODELS}
    assert len(by_name) == len(MODELS)
    assert all("arXiv:" in model.source for model in MODELS)
    # Brown et al. 2020, table D.1: 3.14e23 FLOPs for GPT-3 (its 174.6B parameters rounded up here)
    assert by_name["GPT-3"].compute == pytest.approx(3.14e23, rel=0.01)
    # Grattafiori et al. 2024, section 1: 3.8e25 FLOPs
    assert by_name["Llama 3 405B"].compute == pytest.approx(3.8e25, rel=0.01)
    assert by_name["Chinchilla"].tokens_per_param == 20


def test_the_small_half_predicts_the_large(sweep):
    found = extrapolate(*sweep(0, noise=0.005), starts=grid()[::60])
    assert len(found.errors) == 120
    assert (found.compute >= found.limit).all()
    assert found.mean_error < 0.02
    assert np.isfinite(found.errors).all()
    with pytest.raises(ValueError, match="share"):
        extrapolate(*sweep(0), share=1.0)
