"""Rates of failure: intervals and claims from k failures in n runs. Standard library only."""

from __future__ import annotations

import math

# Quantile of the normal distribution for an interval of 95 %.
_Z95 = 1.959963984540054
# No target runs more often; the search for a number of runs ends here.
_MAX_RUNS = 10_000_000
_EPSILON = 1e-14
_TINY = 1e-300


def wilson(failures: int, runs: int, z: float = _Z95) -> tuple[float, float]:
    """Return Wilson's interval for the rate of failure.

    Args:
        failures: Number of failures, 0 to `runs`.
        runs: Number of runs. Without runs the interval is 0 to 1.
        z: Quantile of the normal distribution; the default gives 95 %.
    """
    if runs == 0:
        return 0.0, 1.0
    rate = failures / runs
    scale = 1 + z * z / runs
    middle = (rate + z * z / (2 * runs)) / scale
    half = z * math.sqrt(rate * (1 - rate) / runs + z * z / (4 * runs * runs)) / scale
    low = 0.0 if failures == 0 else max(0.0, middle - half)
    high = 1.0 if failures == runs else min(1.0, middle + half)
    return low, high


def jeffreys(failures: int, runs: int, share: float) -> float:
    """Return the rate below which Jeffreys' posterior, Beta(k + 1/2, n - k + 1/2), has `share` of its mass."""
    return beta_quantile(share, failures + 0.5, runs - failures + 0.5)


def runs_to_claim(failures: int, runs: int, rate: float = 0.01, confidence: float = 0.95) -> int:
    """Return how many more runs without failure allow the claim that the rate is below `rate`.

    Args:
        failures: Failures so far.
        runs: Runs so far.
        rate: The rate to claim, between 0 and 1.
        confidence: Confidence of the claim.

    Returns:
        0 if the claim holds now. Without failures, 299 runs in all claim 1 % with 95 %.
    """

    def holds(total: int) -> bool:
        return binomial_cdf(failures, total, rate) <= 1 - confidence

    if holds(runs):
        return 0
    step = 1
    while not holds(runs + step) and step < _MAX_RUNS:
        step *= 2
    low, high = step // 2, step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(runs + middle) else (middle, high)
    return high


def binomial_cdf(failures: int, runs: int, rate: float) -> float:
    """Return the probability of at most `failures` in `runs`."""
    if failures >= runs:
        return 1.0
    return 1.0 - beta_cdf(rate, failures + 1.0, float(runs - failures))


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the cumulative distribution of Beta(a, b) at `x`: the regularised incomplete beta function."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The fraction converges fast on this side of the mean; the other side follows by symmetry.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1.0 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the point below which Beta(a, b) has `share` of its mass, to twelve digits."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2
