"""The objective of Chinchilla's third approach, with derivatives, for many points at once.

    f(theta) = sum_i w_i Huber_delta(r_i)
    r_i = log(exp(a - alpha x_i) + exp(b - beta y_i) + exp(e)) - log L_i

theta = (a, b, e, alpha, beta) with a = log A, b = log B, e = log E; x = log N, y = log D.
Hoffmann et al. 2022, arXiv:2203.15556, section 3.3 and appendix D.2. The Huber terms are *summed*.

S is the number of points, n of observations, Z of coordinates of a point.
"""

from dataclasses import dataclass

import numpy as np

Z = 5
CHUNK = 1 << 15  # numbers in a temporary array: small enough for the cache


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Observations, shifted and scaled so that f is about equally steep along each coordinate.

    Attributes:
        x, y, z: (n,) standardised log N and log D; log L.
        delta: the residual at which Huber's parabola becomes a line.
        scales: (mean of x, spread of x, mean of y, spread of y).
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    delta: float
    scales: tuple[float, float, float, float]

    @classmethod
    def of(cls, params, tokens, loss, delta: float) -> "Objective":
        x, y, z = np.log(params), np.log(tokens), np.log(loss)
        scales = (x.mean(), x.std() or 1.0, y.mean(), y.std() or 1.0)
        scales = tuple(float(s) for s in scales)
        x, y = (x - scales[0]) / scales[1], (y - scales[2]) / scales[3]
        return cls(x=x, y=y, z=z, delta=delta, scales=scales)

    def inward(self, theta: np.ndarray) -> np.ndarray:
        """Convert theta (S, Z) to the scaled coordinates."""
        a, b, e, alpha, beta = np.asarray(theta, dtype=np.float64).T
        mx, sx, my, sy = self.scales
        return np.stack([a - alpha * mx, b - beta * my, e, alpha * sx, beta * sy], axis=-1)

    def outward(self, scaled: np.ndarray) -> np.ndarray:
        """Convert scaled coordinates (S, Z) to theta: the inverse of `inward`."""
        a, b, e, alpha, beta = np.asarray(scaled, dtype=np.float64).T
        mx, sx, my, sy = self.scales
        alpha, beta = alpha / sx, beta / sy
        return np.stack([a + alpha * mx, b + beta * my, e, alpha, beta], axis=-1)

    def value(self, points: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Return f (S,) at scaled `points` (S, Z); `weights` (S, n) of the observations or None."""
        values = np.empty(len(points))
        for part in self._parts(points):
            r, *_ = self._residuals(points[part])
            size = np.abs(r)
            small = np.minimum(size, self.delta)
            terms = small * (size - 0.5 * small)
            if weights is not None:
                terms *= weights[part]
            values[part] = terms.sum(-1)
        return values

    def derivatives(self, points: np.ndarray, weights: np.ndarray | None = None):
        """Return (f (S,), gradient (S, Z), Hessian (S, Z, Z), bound (S, Z, Z)).

        The Hessian uses, for each residual, the second derivative of its piece of Huber's function.
        The bound replaces Huber's function by the parabola that touches it from above (iteratively
        reweighted least squares), and drops the second derivatives of the residuals. So the bound
        is never negative.
        """
        count = len(points)
        f, gradient = np.empty(count), np.empty((count, Z))
        hessian, bound = np.empty((count, Z, Z)), np.empty((count, Z, Z))
        for part in self._parts(points):
            r, p, q, s = self._residuals(points[part])
            size = np.abs(r)
            small = np.minimum(size, self.delta)
            w = 1.0 if weights is None else weights[part]
            f[part] = (w * small * (size - 0.5 * small)).sum(-1)
            slope = w * np.clip(r, -self.delta, self.delta)  # Huber's first derivative
            gradient[part], curved = self._first(slope, p, q, s)
            inside = w * (size <= self.delta)  # the second derivative
            hessian[part] = self._outer(inside - slope, p, q, s) + curved
            bound[part] = self._outer(w * self.delta / np.maximum(size, self.delta), p, q, s)
        return f, gradient, hessian, bound

    def _parts(self, points):
        step = max(1, CHUNK // len(self.z))
        return [slice(start, start + step) for start in range(0, len(points), step)]

    def _residuals(self, points):
        """r, and the shares p, q, s of the three terms in the predicted loss: (S, n) each."""
        a, b, e, alpha, beta = (points[:, k, None] for k in range(Z))
        u, v = a - alpha * self.x, b - beta * self.y
        top = np.maximum(np.maximum(u, v), e)
        p, q, s = np.exp(u - top), np.exp(v - top), np.exp(e - top)
        total = p + q + s
        return np.log(total) + top - self.z, p / total, q / total, s / total

    def _first(self, slope, p, q, s):
        """The gradient (S, Z), and (S, Z, Z) sums of slope times each term's share g g^T."""
        x, y = self.x, self.y
        sp, sq, ss = slope * p, slope * q, (slope * s).sum(-1)
        px, qy = sp @ np.stack([x**0, x, x * x], 1), sq @ np.stack([y**0, y, y * y], 1)
        gradient = np.stack([px[:, 0], qy[:, 0], ss, -px[:, 1], -qy[:, 1]], axis=-1)
        curved = np.zeros((len(slope), Z, Z))
        for first, second, term in ((0, 3, px), (1, 4, qy)):
            curved[:, first, first] = term[:, 0]
            curved[:, first, second] = curved[:, second, first] = -term[:, 1]
            curved[:, second, second] = term[:, 2]
        curved[:, 2, 2] = ss
        return gradient, curved

    def _outer(self, c, p, q, s):
        """sum c g g^T for the residuals' gradients g = (p, q, s, -x p, -y q)."""
        x, y = self.x, self.y
        one = np.ones_like(x)
        cp, cq = c * p, c * q
        pp = (cp * p) @ np.stack([one, x, x * x], 1)
        qq = (cq * q) @ np.stack([one, y, y * y], 1)
        pq = (cp * q) @ np.stack([one, x, y, x * y], 1)
        ps = (cp * s) @ np.stack([one, x], 1)
        qs = (cq * s) @ np.stack([one, y], 1)
        entries = {
            (0, 0): pp[:, 0],
            (0, 3): -pp[:, 1],
            (3, 3): pp[:, 2],
            (1, 1): qq[:, 0],
            (1, 4): -qq[:, 1],
            (4, 4): qq[:, 2],
            (0, 1): pq[:, 0],
            (1, 3): -pq[:, 1],
            (0, 4): -pq[:, 2],
            (3, 4): pq[:, 3],
            (0, 2): ps[:, 0],
            (2, 3): -ps[:, 1],
            (1, 2): qs[:, 0],
            (2, 4): -qs[:, 1],
            (2, 2): (c * s * s).sum(-1),
        }
        matrix = np.empty((len(p), Z, Z))
        for (row, column), entry in entries.items():
            matrix[:, row, column] = matrix[:, column, row] = entry
        return matrix
