"""Compares two ways to measure the variance between clusters with noise: squares between clusters, and cluster sums.

    python bench/between_clusters.py

For 60 clusters of 10 to 30 records and ε = 5 (blanked out), it prints the root mean square error of the estimated
variance between clusters, as a share of the variance of a record, for some shares of ε and some limits D. Squares are
replaced by Huber's function beyond D, or means of clusters are clamped to ±D.
"""

import numpy as np
from scipy.stats import norm

CLUSTERS, EPSILON, REACH, REPLICATES = 60, 10.0, 6.8, 600
"""REACH is the largest contribution of a record, in standard deviations of a record."""
GRID = np.linspace(-0.05, 1, 400)


def kept(reach):
    """E min(z², reach²) of a standard normal z."""
    return 1 - 2 * norm.sf(reach) - 2 * reach * norm.pdf(reach) + 2 * reach**2 * norm.sf(reach)


def kept_by_huber(reach):
    """The expectation of Huber's function of a standard normal z."""
    return 1 - 2 * norm.sf(reach) + 2 * reach * norm.pdf(reach) - 2 * reach**2 * norm.sf(reach)


def errors(generator, icc, share, limit):
    """The errors of the ways, and of exact squares, for repeated samples."""
    found, epsilon = [], EPSILON * share
    for _ in range(REPLICATES):
        size = generator.integers(10, 31, CLUSTERS)
        spread = np.sqrt(icc + (1 - icc) / size)
        mean = spread * generator.standard_normal(CLUSTERS)
        noisy, noise = size * mean + generator.laplace(0, 2 * REACH / epsilon, CLUSTERS), 2 * (2 * REACH / epsilon) ** 2
        weight = 1 / (size**2 * 0.1 + size * 0.9 + noise) ** 2
        off = noisy**2 - size * (1 - icc) - noise
        of_sums = (weight * off * size**2).sum() / (weight * size**4).sum()
        clamped, added = np.clip(mean, -limit, limit), generator.laplace(0, 6 * limit * REACH / epsilon)
        of_squares = []
        variance = np.maximum(GRID[:, None] + (1 - icc) / size, 1e-3)
        for squares, left in ((clamped * (2 * mean - clamped), kept_by_huber), (clamped**2, kept)):
            expected = (size * variance * left(limit / np.sqrt(variance))).sum(axis=1)
            of_squares.append(np.interp((size * squares).sum() + added, expected, GRID))
        exact = ((size * mean**2).sum() - CLUSTERS * (1 - icc)) / size.sum()
        found.append([one - icc for one in (*of_squares, of_sums, exact)])
    return np.sqrt(np.mean(np.square(found), axis=0))


def main():
    generator = np.random.default_rng(1)
    print("   icc  share  limit    huber  clamped     sums    exact")
    for icc in (0.05, 0.2):
        for share in (0.06, 0.12, 0.175, 0.2):
            for limit in (0.6, 0.9, 1.35, 2.0):
                figures = " ".join(f"{error:8.3f}" for error in errors(generator, icc, share, limit))
                print(f"{icc:6.2f} {share:6.3f} {limit:6.2f} {figures}")


if __name__ == "__main__":
    main()
