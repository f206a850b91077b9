"""Statistics of comparisons: pure functions from result tables to tables. Every effect is a log loss ratio.

difference(task, seed) = log(loss of the arm / loss of its reference), paired by seed: below 0 the arm is better.

pairing.py finds the pairs and refuses those that cannot be compared; contrasts.py tests their mean, per task and across
tasks; arms.py compares many arms with each other; compute.py reads curves of loss against cost.
"""

from growbench.stats.arms import friedman, holm, pairwise, performance_profile, tie_groups
from growbench.stats.compute import at_equal_cost, compute_saved, crossing, power_law, predict, saved_by_seed
from growbench.stats.contrasts import (
    MARGIN,
    SEEDS,
    across_tasks,
    contrast,
    equivalence,
    minimum_detectable,
    noninferiority,
    paired,
    sign_flip,
    superiority,
)
from growbench.stats.pairing import (
    EQUAL,
    KEY,
    SIZE,
    Side,
    at_budget,
    combine,
    couples,
    full_budget,
    pairs,
    refusal,
    refuse_unequal,
    unequal,
)

__all__ = [
    "EQUAL",
    "KEY",
    "MARGIN",
    "SEEDS",
    "SIZE",
    "Side",
    "across_tasks",
    "at_budget",
    "at_equal_cost",
    "combine",
    "compute_saved",
    "contrast",
    "couples",
    "crossing",
    "equivalence",
    "friedman",
    "full_budget",
    "holm",
    "minimum_detectable",
    "noninferiority",
    "paired",
    "pairs",
    "pairwise",
    "performance_profile",
    "power_law",
    "predict",
    "refusal",
    "refuse_unequal",
    "saved_by_seed",
    "sign_flip",
    "superiority",
    "tie_groups",
    "unequal",
]
