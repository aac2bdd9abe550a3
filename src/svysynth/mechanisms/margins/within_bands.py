"""Within bands: how amounts and weights go together inside their wide bands, where nothing was measured.

Each amount of a record has a normal score z: of its wide band, whose ends are normal quantiles of the shares of bands,
a place. Pairs of amounts whose margin was measured have a correlation ρ of their scores, from the expected counts of
their bands. Within its band, the score of an amount is drawn from the normal distribution given the scores of the
others, in a few rounds (Gibbs), and its rank gives the place of the amount. So a weight that falls with the amount from
band to band falls within bands too, and means, correlations and slopes are not drawn towards independence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from svysynth.core.grouping import Booleans, Floats, Integers
from svysynth.mechanisms.margins.coding import Coding
from svysynth.mechanisms.margins.graph import Graph, Parameters, even_uniforms

LARGEST = 0.95
"""The largest correlation of scores, and the largest share of the variance of one that others explain."""
FURTHEST = 8.0
"""The score at the outer ends of the first and the last band."""
ROUNDS = 4
"""How often each score is drawn given the others."""
RIDGE = 0.1
"""Added to the variance of scores that explain another: noisy correlations may not belong to any distribution."""
SMALL = 1e-9
"""The least variance of bands' mean scores that is divided by."""


class Within:
    """Draws places within bands, one amount after the other, in rounds."""

    def __init__(
        self,
        graph: Graph,
        parameters: Parameters,
        codings: Sequence[Coding],
        levels: Integers,
        generator: np.random.Generator,
    ) -> None:
        self.codings, self.levels, self.generator = codings, levels, generator
        margins = graph.margins(parameters)
        self.cuts = {place: self._cuts(place) for place, one in enumerate(codings) if one.banded}
        self.correlation = {
            factor.answers: self._correlation(factor.answers, np.asarray(margin[0]))
            for factor, margin in zip(graph.factors, margins, strict=True)
            if len(factor.answers) == 2 and all(codings[one].banded for one in factor.answers)
        }
        self.scores: dict[int, Floats] = {}
        for _ in range(ROUNDS if self.correlation else 1):
            for place in self.cuts:
                self.scores[place] = self._score(place, even_uniforms(levels[:, place], generator))

    def places(self, place: int) -> Floats:
        """The places of an amount within its wide bands, as shares of these: the ranks of scores, spread evenly."""
        level = self.levels[:, place]
        order = np.lexsort((self.scores[place], level))
        count = np.bincount(level)
        first = np.cumsum(count) - count
        found = np.empty(len(level))
        found[order] = np.arange(len(level)) - first[level[order]] + self.generator.random(len(level))
        return found / count[level]

    def _score(self, place: int, uniform: Floats) -> Floats:
        """Scores of an amount given those of the others."""
        low, high = self._ends(place)
        mean, spread = self._given(place)
        start, end = ndtr((low - mean) / spread), ndtr((high - mean) / spread)
        return np.asarray(np.clip(mean + spread * ndtri(start + uniform * (end - start)), low, high))

    def _ends(self, place: int) -> tuple[Floats, Floats]:
        band = np.maximum(self.levels[:, place] - self.codings[place].single, 0)
        return self.cuts[place][band], self.cuts[place][band + 1]

    def _in_band(self, place: int) -> Booleans:
        return self.levels[:, place] >= self.codings[place].single

    def _cuts(self, place: int) -> Floats:
        """The normal quantiles of the ends of the bands, from the levels that were drawn."""
        coding = self.codings[place]
        bands = coding.wide_levels - coding.single
        count = np.bincount(self.levels[self._in_band(place), place] - coding.single, minlength=bands) + 0.5
        reached = np.cumsum(count)[:-1] / count.sum()
        return np.concatenate([[-FURTHEST], np.asarray(ndtri(reached)), [FURTHEST]])

    def _correlation(self, answers: tuple[int, ...], margin: Floats) -> float:
        """ρ from expected counts: the covariance of bands' mean scores over the variances of these."""
        counts = margin[self.codings[answers[0]].single :, self.codings[answers[1]].single :]
        scores = []
        for axis, place in enumerate(answers):
            cuts, share = self.cuts[place], counts.sum(axis=1 - axis) / counts.sum()
            density = np.exp(-(cuts**2) / 2) / np.sqrt(2 * np.pi)
            mean = (density[:-1] - density[1:]) / np.maximum(np.diff(ndtr(cuts)), 1e-12)
            mean = mean - share @ mean
            scores.append(mean / max(float(share @ mean**2), SMALL))  # zero with one band, and so is ρ
        return float(np.clip(scores[0] @ (counts / counts.sum()) @ scores[1], -LARGEST, LARGEST))

    def _given(self, place: int) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of a score, given the others', where these are in bands."""
        own = [one for one in self.scores if tuple(sorted((one, place))) in self.correlation]
        mean, spread = np.zeros(len(self.levels)), np.ones(len(self.levels))
        there = {one: self._in_band(one) & self._in_band(place) for one in own}
        for pattern in {tuple(row) for row in np.stack([there[one] for one in own], axis=1)} if own else ():
            used = [one for one, present in zip(own, pattern, strict=True) if present]
            records = np.all([there[one] == present for one, present in zip(own, pattern, strict=True)], axis=0)
            if used:
                between = np.array([[1.0 if a == b else self._between(a, b) for b in used] for a in used])
                against = np.array([self._between(one, place) for one in used])
                slope = np.linalg.solve(between + RIDGE * np.eye(len(used)), against)
                explained = float(slope @ against)
                slope *= min(1.0, LARGEST / max(explained, 1e-12))
                mean[records] = slope @ np.stack([self.scores[one][records] for one in used])
                spread[records] = np.sqrt(1 - min(explained, LARGEST))
        return mean, spread

    def _between(self, one: int, other: int) -> float:
        return self.correlation.get(tuple(sorted((one, other))), 0.0)  # type: ignore[arg-type]
