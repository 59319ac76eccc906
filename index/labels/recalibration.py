"""Recalibration (Platt scaling) of probabilities of label errors, by the labels that people reviewed.

A person's decisions tell of some labels whether they were wrong. With x = logit p of a probability p, the recalibrated
one is sigmoid(a + b x) (Platt, "Probabilistic outputs for support vector machines", 1999), with a and b of the greatest
posterior: their prior is normal, as wide as a and b vary from data set to data set. Without decisions nothing changes;
with hundreds the simulated noise hardly counts. That people look at probable errors first does no harm, as it depends
on p alone; that they answer only what is obvious would, and the interval does not know of it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from index.arrays import Doubles, Mask

# Of 24 kinds of mistakes in parts of cars, groceries and CIFAR-N that no benchmark reports on.
_SPREAD = np.array([0.75, 0.25])  # prior standard deviations of intercept and slope
_MIN_PROBABILITY = 1e-4  # probability that has a finite logit
_LEAST_SLOPE = 0.2  # so that the order of the probabilities stays


@dataclass(frozen=True, slots=True)
class Recalibration:
    """Logistic map of probabilities, with the covariance (2, 2) of its intercept and slope."""

    intercept: float
    slope: float
    covariance: Doubles

    @classmethod
    def fit(cls, p: Doubles, found: Mask) -> "Recalibration":
        """Fit to (n,) probabilities of reviewed statements, and whether each was true."""
        inputs, targets = _inputs(p), found.astype(np.float64)
        prior = np.array([0.0, 1.0])

        def loss(values: Doubles) -> tuple[float, Doubles]:
            """The negative logarithm of the posterior, and its gradient."""
            scores, from_prior = inputs @ values, (values - prior) / _SPREAD
            value = (np.logaddexp(0, scores) - targets * scores).sum() + (from_prior**2).sum() / 2
            return float(value), inputs.T @ (expit(scores) - targets) + from_prior / _SPREAD

        bounds = [(None, None), (_LEAST_SLOPE, None)]
        fitted = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-12).x
        now = expit(inputs @ fitted)
        information = (inputs * (now * (1 - now))[:, None]).T @ inputs + np.diag(_SPREAD**-2)
        return cls(float(fitted[0]), float(fitted[1]), np.linalg.inv(information))

    def apply(self, p: Doubles) -> Doubles:
        """Recalibrated probabilities, of the same shape; 0 and 1 stay."""
        moved: Doubles = expit(self.intercept + self.slope * logit(p.clip(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY)))
        return np.where((p <= 0) | (p >= 1), p, moved)

    def estimate_share(self, p: Doubles) -> tuple[float, float, float]:
        """Estimated share of wrong labels with its 95 % interval, from (n,) probabilities before recalibration.

        The interval covers the uncertainty of the fit and of the labels.
        """
        now = self.apply(p)
        slopes = (_inputs(p) * (now * (1 - now))[:, None]).mean(axis=0)
        spread = float(np.sqrt(slopes @ self.covariance @ slopes + (now * (1 - now)).sum() / len(p) ** 2))
        share = float(now.mean())
        return share, max(share - 1.96 * spread, 0.0), min(share + 1.96 * spread, 1.0)


def _inputs(p: Doubles) -> Doubles:
    """(n, 2): 1 and the logit."""
    found = logit(p.clip(_MIN_PROBABILITY, 1 - _MIN_PROBABILITY))
    return np.stack([np.ones_like(found), found], axis=1)
