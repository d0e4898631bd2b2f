"""Solutions of week 2: scaling laws."""

import numpy as np
from scipy.optimize import minimize


def count_flops(config, tokens):
    """Each matrix meets each token once; the scores and their use are T × T for each head."""
    c, d = config, config.head_width
    attention = (2 * c.heads + 2 * c.key_heads) * d * c.width
    mlp = (3 if c.mlp == "swiglu" else 2) * c.width * c.inner
    scores = 2 * tokens * c.heads * d  # of one token, with all others
    forward = 2 * tokens * (c.layers * (attention + mlp + scores) + c.vocab * c.width)
    return 3 * forward


def huber_objective(theta, params, tokens, loss, delta=1e-3):
    """The largest exponent is taken out, so that no exponential is too large for a float."""
    a, b, e, alpha, beta = theta
    terms = np.stack(
        [a - alpha * np.log(params), b - beta * np.log(tokens), 0 * params + e]
    )
    top = terms.max(0)
    r = abs(np.log(np.exp(terms - top).sum(0)) + top - np.log(loss))
    return np.where(r <= delta, r**2 / 2, delta * (r - delta / 2)).sum()


def optimal(compute, E, A, B, alpha, beta):
    """With the multiplier gone: alpha A / N^alpha = beta B / D^beta, where N D = C / 6."""
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    pairs = compute / 6
    return G * pairs ** (beta / (alpha + beta)), pairs ** (alpha / (alpha + beta)) / G


def find_flaw(fit):
    """First what the runs say of themselves; then whether one can go further down from theta."""
    if (fit.tokens < 0.99 * fit.scheduled).any():
        return "schedule"
    if (fit.flops > 1.001 * 6 * fit.params * fit.tokens).any():
        return "embedding"
    if min(len(set(fit.params)), len(set(fit.tokens))) < 3:
        return "sizes"
    # At the centre of the runs, a change of a slope changes no height: the valley is round there.
    x, y = np.log(fit.params).mean(), np.log(fit.tokens).mean()
    a, b, e, alpha, beta = fit.theta

    def objective(z):
        return fit.objective((z[0] + z[3] * x, z[1] + z[4] * y, *z[2:]))

    z = np.array([a - alpha * x, b - beta * y, e, alpha, beta])
    for _ in range(3):
        z = minimize(objective, z, method="Nelder-Mead", options={"maxiter": 2000}).x
    return "stopped early" if objective(z) < 0.9 * fit.objective(fit.theta) else "none"
