"""One instance of every rule and mixing, for N vectors of which F are bad: all tests sweep these.

A new member is one row here. `fails` is the visible table of laws that a member breaks by nature.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import reference
import reference_related
import torch
from reference import Array, Result

import byzantium as bz
from byzantium import related
from byzantium.learning import Momentum, WorkerMethod

N, F = 23, 2


@dataclass(frozen=True)
class Rule:
    rule: bz.Aggregator
    reference: Callable[[Array], Result]
    fails: frozenset[str] = frozenset()
    robust: bool = True

    def fresh(self) -> bz.Aggregator:
        return copy.deepcopy(self.rule)


@dataclass(frozen=True)
class Mix:
    mixing: bz.Mixing
    reference: Callable[[Array, torch.Generator], Array]
    fails: frozenset[str] = frozenset()
    copies: int = 1  # how many bad vectors one bad vector becomes


def laws(*names: str) -> frozenset[str]:
    assert set(names) <= {"permutation", "translation", "rotation", "scale", "unanimity"}
    return frozenset(names)


def medoid(X: Array) -> Array:
    sums = [sum(float(np.linalg.norm(x - y)) for y in X) for x in X]
    return X[int(np.argmin(sums))]


RULES = [
    Rule(bz.Mean(), reference.mean, robust=False),
    Rule(bz.Krum(f=F), lambda X: reference.krum(X, F)),
    Rule(bz.Krum(f=F, m=4, power=4), lambda X: reference.krum(X, F, 4, 4)),
    Rule(bz.GeometricMedian(), reference.geometric_median),
    Rule(
        bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
        lambda X: reference.weiszfeld(X, 8, 0.1, np.zeros(X.shape[1])),
        laws("translation", "scale"),
    ),
    Rule(
        bz.GeometricMedian(steps=5, smoothing=0.1),
        lambda X: reference.weiszfeld(X, 5, 0.1, medoid(X)),
        laws("scale"),
    ),
    Rule(
        bz.CenteredClipping(radius=8.0, steps=3),
        lambda X: reference.centered_clipping(X, 8.0, 3, np.zeros(X.shape[1])),
        laws("translation", "scale", "unanimity"),
    ),
    Rule(bz.AgnosticClipping(f=F), lambda X: reference.agnostic_clipping(X, F)),
    Rule(bz.Median(), reference.median, laws("rotation")),
    Rule(bz.TrimmedMean(f=F), lambda X: reference.trimmed_mean(X, F), laws("rotation")),
    Rule(bz.MeaMed(f=F), lambda X: reference.meamed(X, F), laws("rotation")),
    # Bulyan's last picks look at one neighbour: two that are each other's always tie.
    Rule(bz.Bulyan(f=F), lambda X: reference.bulyan(X, F), laws("rotation", "permutation")),
    Rule(bz.MinimumDiameter(f=F), lambda X: reference.minimum_diameter(X, F)),
    Rule(bz.SpectralFilter(f=F), lambda X: reference.spectral_filter(X, F)),
]

# The systems of the paper's related work. The memory of those that have one is empty: what they do
# with it is in `tests/related`.
RELATED = [
    Rule(
        related.DivideAndConquer(f=F),
        lambda X: reference_related.divide_and_conquer(X, F),
        robust=False,
    ),
    Rule(
        related.LargestCluster(),
        reference_related.largest_cluster,
        laws("translation"),
        robust=False,
    ),
    Rule(
        related.SignVote(size=0.5),
        lambda X: reference_related.sign_vote(X, 0.5),
        laws("translation", "rotation", "scale", "unanimity"),
    ),
    Rule(
        related.SignSum(penalty=0.5),
        lambda X: reference_related.sign_sum(X, 0.5),
        laws("translation", "rotation", "scale", "unanimity"),
    ),
    Rule(related.Safeguard(short=2, long=6), reference.mean, robust=False),
    Rule(
        related.ByzantineSGD(v=6.0, t_a=1e9, t_b=1e9),
        lambda X: (reference_related.byzantine_sgd([X], 6.0, 1e9, 1e9)[0][0], math.inf),
        laws("scale"),
    ),
]
RULES += RELATED
# In a rule by blocks of columns no worker has a weight, which most tests look at: it is in
# tests/related alone.
BLOCKS = Rule(
    related.BlockGeometricMedian(share=0.5),
    lambda X: (reference_related.block_geometric_median([X], 0.5)[0][0], math.inf),
    laws("translation", "rotation", "unanimity"),
    robust=False,
)

MIXINGS = [
    Mix(
        bz.Bucketing(s=2),
        lambda X, g: reference.bucketing(X, 2, torch.randperm(len(X), generator=g).tolist()),
        laws("permutation"),
    ),
    Mix(
        bz.Resampling(s=2),
        lambda X, g: reference.resampling(X, 2, torch.randperm(2 * len(X), generator=g).tolist()),
        laws("permutation"),
        copies=2,
    ),
    Mix(bz.NearestNeighborMixing(f=F), lambda X, _: reference.nearest_neighbor_mixing(X, F)[0]),
    Mix(
        bz.AdaptiveClipping(f=F),
        lambda X, _: reference.adaptive_clipping(X, F),
        laws("translation"),
    ),
    Mix(
        bz.Clipping(radius=8.0),
        lambda X, _: reference.clipping(X, 8.0),
        laws("translation", "scale", "unanimity"),
    ),
    Mix(bz.RankClipping(f=F), lambda X, _: reference.rank_clipping(X, F), laws("translation")),
    Mix(
        bz.Hierarchy(groups=11, inner=bz.Mean()),
        lambda X, _: reference.hierarchy(X, [3] + [2] * 10, lambda group: reference.mean(group)[0]),
        laws("permutation"),
    ),
]

# Gossip is for trainings without a server; without a graph, all vectors are neighbors.
GOSSIP = [
    Mix(bz.Gossip(), lambda X, _: reference.plain_gossip(X)),
    Mix(bz.ClippedGossip(f=F), lambda X, _: reference.clipped_gossip(X, F)),
    Mix(
        bz.ClippedGossip(f=F, radius="second"),
        lambda X, _: reference.clipped_gossip(X, F, "second"),
    ),
    Mix(
        bz.ClippedGossip(f=F, radius=8.0),
        lambda X, _: reference.clipped_gossip(X, F, 8.0),
        laws("scale"),
    ),
    Mix(bz.ClippedSumGossip(f=F), lambda X, _: reference.clipped_sum_gossip(X, F)),
    Mix(bz.TrimmedGossip(f=F), lambda X, _: reference.trimmed_gossip(X, F)),
]
# Groups with a rule of their own; groups of means are above.
GROUPS = Mix(
    bz.Hierarchy(groups=4, inner=bz.GeometricMedian()),
    lambda X, _: reference.hierarchy(
        X, [6, 6, 6, 5], lambda group: reference.geometric_median(group)[0]
    ),
    laws("permutation"),
)
MIXINGS += [*GOSSIP, GROUPS]


def pipeline(mix: Mix, rule: Rule) -> Rule:
    def materialised(X: Array) -> Result:
        return rule.reference(mix.reference(X, torch.Generator().manual_seed(7)))

    return Rule(mix.mixing >> rule.fresh(), materialised, mix.fails | rule.fails, rule.robust)


@dataclass(frozen=True)
class RootRule:
    rule: bz.Aggregator
    reference: Callable[[Array, Array], Array]


ROOT_RULES = [
    RootRule(bz.RootMatching(f=F), lambda X, root: reference.root_matching(X, root, F)),
    RootRule(
        bz.RootMatching(f=15, ridge=0.5), lambda X, root: reference.root_matching(X, root, 15, 0.5)
    ),
    RootRule(bz.FLTrust(), reference.fltrust),
    RootRule(bz.RootOnly(), lambda X, root: root),
]

# Its root data are a function, the loss after a step: it is in tests/related.
TRIALS = Rule(
    related.Zeno(f=F),
    lambda X: (reference_related.zeno(X, lambda step: float(step @ step), F), math.inf),
    laws("translation"),
)

# Its number of vectors must be a multiple of r, and N is a prime number: it is in tests/related.
VOTE = Mix(related.MajorityVote(r=3), lambda X, _: reference_related.majority_vote(X, 3))

# Before a rule of a server gossip means little: of those pipelines, and those of groups with a rule
# of their own, one for each is enough. Rules of related work come alone: behind mixings they would
# test the mixings once more.
PIPELINES = [
    pipeline(mix, rule)
    for mix in MIXINGS
    if mix not in GOSSIP and mix is not GROUPS
    for rule in RULES
    if rule not in RELATED
]
PIPELINES += [pipeline(mix, RULES[0]) for mix in GOSSIP]
PIPELINES += [pipeline(GROUPS, Rule(bz.GeometricMedian(), reference.geometric_median))]
EVERYTHING = RULES + PIPELINES
# Where machines hold columns of vectors, rules that remember whole vectors are refused.
BY_COLUMNS = [member for member in EVERYTHING if not member.rule.stages[-1].remembers_workers]
RULES_BY_COLUMNS = [member for member in RULES if member in BY_COLUMNS]
# The nodes of a federation come and go, and send models: rules that remember workers are refused,
# and SignSum, the server's part of RSA, makes no model of models.
FEDERATED = [member for member in BY_COLUMNS if not isinstance(member.rule, related.SignSum)]


def name(member: object) -> str:
    return repr(getattr(member, "rule", getattr(member, "mixing", member)))


ATTACKS: list[bz.Attack] = [
    bz.NoAttack(),
    bz.BitFlip(),
    bz.LabelFlip(),
    bz.Mimic(),
    bz.Mimic(warmup=1, retarget=True),
    bz.Mimic(target=2),
    bz.InnerProduct(),
    bz.ALittleIsEnough(),
    bz.GaussianNoise(scale=2.0),
    bz.NonFinite(),
    bz.NonFinite("mixture"),
    bz.MinMax(),
    bz.MinSum(),
    bz.MinMax("unit"),
    bz.MinSum("sign"),
    bz.RelocatedPerturbation(),
    bz.RelocatedPerturbation(relocation=0.5, reference=1, angle=30, z=2),
    bz.Fang("krum"),
    bz.Fang("trim"),
    bz.ByzMean(),
    bz.Dissensus(),
    bz.Dissensus(epsilon=2.0),
    bz.SpectralHeterogeneity(),
    bz.Backdoor(),
    bz.Backdoor(target=3, share=0.5, patch=2, boost="n", norm="median"),
    bz.Adaptive(),
    bz.Adaptive("distance", budget=30),
    bz.Adaptive("loss"),
    bz.Adaptive("collapse"),
    bz.Tuned(bz.InnerProduct()),
    bz.Tuned(bz.GaussianNoise()),
    bz.Tuned(bz.InnerProduct(), aim="alignment"),
    bz.Tuned(bz.ALittleIsEnough(), aim="collapse"),
    bz.Tuned(bz.RelocatedPerturbation()),
    bz.Tuned(bz.Dissensus()),
    bz.Tuned(bz.ALittleIsEnough(), both=False),
]

# What workers make of their gradients.
WORKERS: list[WorkerMethod] = [
    Momentum(beta=0.9),
    related.SAGA(),
    related.Marina(p=0.3),
    related.RSA(penalty=0.125),
]
