"""Loss against cost: what compute an arm saves at a loss, and power laws through cooled budget points.

saved(loss) = log(cost at which the arm reaches the loss / cost at which the baseline does), over a curve of losses.
L(C) = limit + scale (C / unit)^-exponent is fitted, drawn and extrapolated for the eye; it never decides anything.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from growbench.results import UNSCORED
from growbench.stats.pairing import KEY, Side, at_budget, losses, name_of, of_arm, refuse_unequal

_EXPONENTS = (0.01, 3.0)
_PARAMETERS = 3
_ROUNDING = 1e-9  # costs that differ by less are one
_ESTIMATES = (
    *("limit", "limit_low", "limit_high", "scale", "exponent", "exponent_low", "exponent_high"),
    *("rmse", "df", "cost_unit", "cost_low", "cost_high"),
)


def compute_saved(
    results: pd.DataFrame,
    arm: Side,
    baseline: Side,
    *,
    cost: str = "flops",
    metric: str = "loss",
    points: int = 25,
    targets: Mapping[str, Sequence[float]] | None = None,
    equal: Collection[str] = ("data_fingerprint", "params_non_embedding"),
) -> pd.DataFrame:
    """The compute-saved curve: by task, seed and target loss, what the arm and the baseline spend to reach it.

    arm, baseline: names, or their rows at all budget points. cost: a column of results in FLOPs (a view). targets: per
    task the losses to reach; by default `points` of them, evenly in log loss, over what the baseline passes in every
    seed that finished (where seeds have no such range in common, over the mean curve's).

    A curve is the running minimum of the losses over cost, linear in log cost between neighbouring budget points: where
    a loss rises again, the earlier, lower one stays reached. Nothing is extrapolated or dropped. arm_reach and
    baseline_reach: "" where the target is met between two points; "never" where it is not met within the budget, the
    cost being the largest; "before" where the first point is already below it, the cost being that point's. log_ratio
    is accordingly exact, or a bound: "at least", "at most", or "unknown" (NaN).

    Columns: task, seed, target, arm_cost, baseline_cost, arm_reach, baseline_reach, log_ratio, bound, in_range (no seed
    reaches the target "before"), missing (who has no points). ValueError as of `refuse_unequal`.
    """
    sides = arm, baseline
    rows = [side if isinstance(side, pd.DataFrame) else of_arm(results, side) for side in sides]
    refuse_unequal(*(own.drop_duplicates([*KEY, *equal]) for own in rows), equal=equal)
    curves = [_curves(own, cost, metric) for own in rows]
    found = []
    for task in dict.fromkeys(task for curve in curves for task, _ in curve):
        own = [{seed: curve for (name, seed), curve in each.items() if name == task} for each in curves]
        losses_to_reach = targets[task] if targets is not None else _targets(list(own[1].values()), points)
        for seed in sorted(own[0].keys() | own[1].keys()):
            lacking = [name_of(side) for side, each in zip(sides, own, strict=True) if seed not in each]
            table = _ratios(own[0].get(seed), own[1].get(seed), np.array(losses_to_reach, dtype="float64"))
            found.append(table.assign(task=task, seed=seed, missing=" and ".join(lacking)))
    curve = pd.concat(found, ignore_index=True)
    early = (curve["arm_reach"] == "before") | (curve["baseline_reach"] == "before")
    curve["in_range"] = ~early.groupby([curve["task"], curve["target"]]).transform("any")
    costs = ["arm_cost", "baseline_cost", "arm_reach", "baseline_reach"]
    return curve[["task", "seed", "target", *costs, "log_ratio", "bound", "in_range", "missing"]]


def saved_by_seed(curve: pd.DataFrame, *, reached: bool = False) -> pd.DataFrame:
    """`compute_saved` summed up for `contrast`: by task and seed, the mean log ratio over the targets in range.

    Where no target of a task is in range, over all of them. A censored target counts with its bound, so that the mean
    is a bound in the same direction; where both directions occur nothing is known (NaN). reached: only over the targets
    whose ratio is exact in every seed, which says nothing of the harder ones; NaN where there are none.

    Columns: task, seed, difference (below 0: the arm is cheaper), bound, targets (how many), outside (how many were
    left out), missing.
    """
    rows = []
    if reached:
        inexact = (curve["bound"] != "") & (curve["missing"] == "")
        usable = ~inexact.groupby([curve["task"], curve["target"]]).transform("any")
    else:
        usable = curve["in_range"] | ~curve.groupby("task")["in_range"].transform("any")
    for (task, seed), every in curve.groupby(KEY, sort=False):
        used = every[usable.loc[every.index]]
        bounds = sorted(set(used["bound"]) - {""})
        bound = "unknown" if len(bounds) > 1 else bounds[0] if bounds else ""
        difference = np.nan if bound == "unknown" else used["log_ratio"].mean()
        missing = every["missing"].iloc[0] or ("" if len(used) else "the range in common")
        row = {"task": task, "seed": seed, "difference": difference, "bound": bound, "targets": len(used)}
        rows.append(row | {"outside": len(every) - len(used), "missing": missing})
    return pd.DataFrame(rows, columns=["task", "seed", "difference", "bound", "targets", "outside", "missing"])


def at_equal_cost(
    results: pd.DataFrame,
    arm: Side,
    baseline: pd.DataFrame,
    *,
    cost: str = "flops",
    metric: str = "loss",
    equal: Collection[str] = ("data_fingerprint", "params_non_embedding"),
) -> pd.DataFrame:
    """The differences by seed of an arm from the baseline's loss at what the arm spent: `pairs` at equal cost.

    arm: its name, which stands for its rows at the full budget, or rows, one per task and seed. baseline: its rows at
    all budget points. cost: a column of results in FLOPs (a view). The baseline's loss is linear in log cost between
    the two cooled points next to the arm's cost, and is never extrapolated.

    Columns as of `pairs`; unscored counts the baseline's points that are read, missing names who lacks the seed or a
    point at that cost. ValueError as of `refuse_unequal`.
    """
    mine = at_budget(results, arm)
    refuse_unequal(mine, baseline.drop_duplicates([*KEY, *equal]), equal=equal)
    sides = name_of(arm), name_of(baseline)
    points = dict(list(baseline.groupby(KEY)))
    rows = []
    spent = mine[cost].astype("Float64").to_numpy("float64", na_value=np.nan)
    for row, loss, at in zip(mine.to_dict("records"), losses(mine, metric), spent, strict=True):
        key = row["task"], row["seed"]
        read = _read_off(points.pop(key, baseline.iloc[:0]), float(at), sides, cost, metric)
        read["unscored"] += row["status"] in UNSCORED
        known = {"task": key[0], "seed": key[1], "arm_loss": loss, "data_fingerprint": row["data_fingerprint"]}
        rows.append(known | read)
    alone = [{"task": task, "seed": seed, "unscored": 0, "missing": sides[0]} for task, seed in points]
    found = pd.DataFrame([*rows, *alone]).assign(arm=sides[0], reference=sides[1])
    found["difference"] = np.log(found["arm_loss"]) - np.log(found["reference_loss"])
    return found.sort_values(KEY, ignore_index=True)


def _read_off(points: pd.DataFrame, spent: float, sides: tuple[str, str], cost: str, metric: str) -> dict[str, Any]:
    """reference_loss: of one seed's cooled points at a cost; unscored: how many next to it did not finish; missing."""
    none = {"reference_loss": np.nan, "unscored": 0}
    if math.isnan(spent):
        return none | {"missing": f"the cost of {sides[0]}"}
    known = points.dropna(subset=[cost]).sort_values([cost, metric], ascending=[True, False])  # the lower of equal cost
    costs = known[cost].to_numpy("float64")
    if known.empty or not costs[0] * (1 - _ROUNDING) <= spent <= costs[-1] * (1 + _ROUNDING):
        return none | {"missing": f"{sides[1]} at {spent:.3g} FLOPs"}
    right = min(int(np.searchsorted(costs, spent * (1 - _ROUNDING))), len(costs) - 1)
    left = right if costs[right] <= spent * (1 + _ROUNDING) else right - 1
    lost = known["status"].iloc[sorted({left, right})].isin(UNSCORED).sum()
    loss = float(np.interp(np.log(spent), np.log(costs), losses(known, metric)))
    return none | {"reference_loss": loss, "unscored": int(lost), "missing": ""}


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """One run's budget points: costs and running minimum of the losses of those that finished, and the largest cost."""

    costs: np.ndarray
    losses: np.ndarray
    largest: float
    whole: bool  # all of them finished

    def reach(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cost of reaching each target, and how it is reached: "", "never" or "before"."""
        first = np.searchsorted(-self.losses, -targets)  # the first point at or below the target
        costs, how = np.full(len(targets), self.largest), np.full(len(targets), "never", dtype=object)
        for i, (k, target) in enumerate(zip(first, targets, strict=True)):
            if k == len(self.losses):
                continue
            if k == 0:
                costs[i], how[i] = self.costs[0], "" if self.losses[0] == target else "before"
                continue
            share = (self.losses[k - 1] - target) / (self.losses[k - 1] - self.losses[k])
            costs[i], how[i] = self.costs[k - 1] * (self.costs[k] / self.costs[k - 1]) ** share, ""
        return costs, how


def _curves(rows: pd.DataFrame, cost: str, metric: str) -> dict[tuple[str, int], _Curve]:
    """A side's curves by task and seed; half a path has no cost, so it gets that of a seed that finished."""
    own = rows[[*KEY, "budget"]].assign(loss=losses(rows, metric), scored=~rows["status"].isin(UNSCORED).astype(bool))
    whole = pd.Series(rows[cost].astype("Float64").to_numpy("float64", na_value=np.nan), index=rows.index)
    whole = whole.where(own["scored"])
    own["cost"] = whole.fillna(whole.groupby([own["task"], own["budget"]]).transform("max"))
    known = own.dropna(subset=["cost"])
    return {(str(task), int(str(seed))): _curve(points) for (task, seed), points in known.groupby(KEY, sort=False)}


def _curve(rows: pd.DataFrame) -> _Curve:
    finished = rows[rows["scored"]].sort_values("cost", kind="stable")
    return _Curve(
        costs=finished["cost"].to_numpy(),
        losses=np.minimum.accumulate(finished["loss"].to_numpy()),
        largest=float(rows["cost"].max()),
        whole=len(finished) == len(rows),
    )


def _targets(baseline: list[_Curve], points: int) -> np.ndarray:
    """Losses from easy to hard that every run of the baseline passes between its first and its last point."""
    runs = [run for run in baseline if run.whole] or [run for run in baseline if len(run.losses)]
    if not runs:
        return np.array([np.nan])
    ends = np.array([(run.losses[0], run.losses[-1]) for run in runs])
    easy, hard = ends[:, 0].min(), ends[:, 1].max()
    if easy <= hard:
        easy, hard = ends.mean(axis=0)
    return np.unique(np.geomspace(easy, hard, points))[::-1]


def _ratios(arm: _Curve | None, baseline: _Curve | None, targets: np.ndarray) -> pd.DataFrame:
    none = np.full(len(targets), np.nan), np.full(len(targets), "", dtype=object)
    (mine, how), (other, theirs) = (none if run is None else run.reach(targets) for run in (arm, baseline))
    least, most = (how == "never") | (theirs == "before"), (how == "before") | (theirs == "never")
    table = pd.DataFrame({"target": targets, "arm_cost": mine, "baseline_cost": other})
    table = table.assign(arm_reach=how, baseline_reach=theirs, log_ratio=np.log(mine) - np.log(other))
    table["bound"] = np.select([least & most, least, most], ["unknown", "at least", "at most"], "")
    table.loc[table["bound"] == "unknown", "log_ratio"] = np.nan
    return table


def power_law(
    points: pd.DataFrame,
    *,
    by: Sequence[str] = ("arm", "task"),
    cost: str = "flops",
    metric: str = "loss",
    alpha: float = 0.05,
) -> pd.DataFrame:
    """L = limit + scale (C / cost_unit)^-exponent through budget points that finished, a row per group of `by`.

    Least squares of log L in (limit, log scale, log exponent), with intervals from the covariance by the t
    distribution. Points of one seed share their trunk and so their luck: give seed means for intervals that do not
    count them as independent. Where `converged` is false, `why` says so (too few costs, no fall, a parameter at its
    bound, no covariance) and the fit is not to be drawn.

    Columns: `by`, n, limit, limit_low, limit_high, scale, exponent, exponent_low, exponent_high, rmse (of log L), df,
    cost_unit, cost_low, cost_high (the costs covered), covariance (3 x 3 in those coordinates, row by row), converged,
    why.
    """
    rows = []
    for key, group in points.groupby(list(by), sort=False):
        finished = group[~group["status"].isin(UNSCORED)] if "status" in group else group
        known = finished.dropna(subset=[cost, metric])
        x, y = known[cost].to_numpy("float64"), known[metric].to_numpy("float64")
        rows.append(dict(zip(by, key, strict=True)) | _fit(x, y, alpha))
    return pd.DataFrame(rows)


def _fit(costs: np.ndarray, observed: np.ndarray, alpha: float) -> dict[str, Any]:
    """One row of `power_law` without its names."""
    distinct = np.unique(costs)
    row: dict[str, Any] = {"n": len(costs)} | dict.fromkeys(_ESTIMATES, np.nan)
    row |= {"covariance": (np.nan,) * _PARAMETERS**2, "converged": False}
    if len(distinct) <= _PARAMETERS:
        return row | {"why": f"{len(distinct)} costs, and the {_PARAMETERS} parameters need {_PARAMETERS + 1}"}
    unit = float(np.exp(np.log(distinct).mean()))
    row |= {"cost_unit": unit, "cost_low": distinct[0], "cost_high": distinct[-1]}
    if observed[costs == distinct[-1]].mean() >= observed[costs == distinct[0]].mean():
        return row | {"why": "the loss does not fall with cost"}
    theta, misses, slopes, why = _solve(np.log(costs / unit), observed)
    if why:
        return row | {"why": why}
    df = len(costs) - _PARAMETERS
    variance = float((misses**2).sum()) / df
    covariance = variance * np.linalg.inv(slopes.T @ slopes)
    half = float(stats.t.isf(alpha / 2, df)) * np.sqrt(np.diag(covariance))
    low, high = theta - half, theta + half
    row |= {"limit": theta[0], "limit_low": max(low[0], 0.0), "limit_high": high[0], "scale": math.exp(theta[1])}
    row |= {"exponent": math.exp(theta[2]), "exponent_low": math.exp(low[2]), "exponent_high": _exp(high[2])}
    row |= {"rmse": math.sqrt(variance), "df": float(df), "covariance": tuple(covariance.ravel().tolist())}
    return row | {"converged": True, "why": ""}


def _solve(x: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Parameters, residuals of log L and their Jacobian at the least squares, and why they are not to be used."""
    ceiling = float(observed.min())

    def misses(theta: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(_law(theta, x) / observed))

    def slopes(theta: np.ndarray) -> np.ndarray:
        return _slopes(theta, x)

    lower, upper = [0.0, -np.inf, math.log(_EXPONENTS[0])], [ceiling, np.inf, math.log(_EXPONENTS[1])]
    solved = optimize.least_squares(misses, _start(x, observed), slopes, bounds=(lower, upper), x_scale="jac")
    theta, jacobian, why = np.asarray(solved.x), slopes(np.asarray(solved.x)), ""
    scaled = jacobian / np.linalg.norm(jacobian, axis=0)
    if not solved.success:
        why = "the fit did not converge"
    elif min(abs(theta[2] - math.log(bound)) for bound in _EXPONENTS) < 0.02:
        why = f"the exponent is at its bound, {math.exp(theta[2]):.2g}"
    elif theta[0] < 1e-3 * ceiling:
        why = "the limit is at its bound, 0: these costs show no floor"
    elif np.linalg.cond(scaled) > 1e6:
        why = "the points do not determine the parameters: there is no covariance"
    return theta, misses(theta), jacobian, why


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _slopes(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """d log L / d theta at x: (len(x), 3)."""
    exponent = np.exp(theta[2])
    falling = np.exp(theta[1] - exponent * x)
    return np.asarray(np.stack([np.ones_like(x), falling, -falling * exponent * x], axis=1) / _law(theta, x)[:, None])


def _law(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The law at x = log(C / unit) for parameters (..., 3): shape (..., len(x))."""
    limit, log_scale, log_exponent = (theta[..., i, None] for i in range(_PARAMETERS))
    return np.asarray(limit + np.exp(log_scale - np.exp(log_exponent) * x))


def _start(x: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """The best of a scan over exponents: given one, the law is linear in limit and scale."""
    best, start = math.inf, np.array([0.5 * observed.min(), math.log(0.5 * observed.mean()), math.log(0.3)])
    for exponent in np.geomspace(1.1 * _EXPONENTS[0], 0.9 * _EXPONENTS[1], 40):
        design = np.stack([np.ones_like(x), np.exp(-exponent * x)], axis=1) / observed[:, None]
        (limit, scale), *_ = np.linalg.lstsq(design, np.ones_like(x))
        miss = float(((design @ [limit, scale] - 1) ** 2).sum())
        if scale > 0 and miss < best:
            inside = float(np.clip(limit, 0.01 * observed.min(), 0.99 * observed.min()))
            best, start = miss, np.array([inside, math.log(scale), math.log(exponent)])
    return start


def predict(fit: pd.Series, costs: Sequence[float], *, alpha: float = 0.05) -> pd.DataFrame:
    """A converged row of `power_law` at costs: cost, loss, low, high (delta method on log L), extrapolated."""
    theta, covariance, cost = _theta(fit), _covariance(fit), np.array(costs, dtype="float64")
    x = np.log(cost / fit["cost_unit"])
    loss, slope = _law(theta, x), _slopes(theta, x)
    half = float(stats.t.isf(alpha / 2, fit["df"])) * np.sqrt(np.einsum("ni,ij,nj->n", slope, covariance, slope))
    found = pd.DataFrame({"cost": cost, "loss": loss, "low": loss * np.exp(-half), "high": loss * np.exp(half)})
    return found.assign(extrapolated=(cost < fit["cost_low"]) | (cost > fit["cost_high"]))


def crossing(
    left: pd.Series, right: pd.Series, *, reach: float = 100.0, draws: int = 2000, seed: int = 0, alpha: float = 0.05
) -> pd.DataFrame:
    """Where two rows of `power_law` first cross, up to `reach` times the largest cost covered: one row, for the eye.

    The interval is of draws of both parameter vectors from their t distributions, seeded; a draw that never crosses
    counts as infinite, one that has crossed before the costs that both cover as their lowest. Columns: cost, low, high,
    share (of draws that cross within the range), extrapolated (beyond what either covers), why (no cost).
    """
    row: dict[str, Any] = {"cost": np.nan, "low": np.nan, "high": np.nan, "share": np.nan, "extrapolated": False}
    if not (left["converged"] and right["converged"]):
        return pd.DataFrame([row | {"why": "a fit did not converge"}])
    grid = np.linspace(
        math.log(max(left["cost_low"], right["cost_low"])),
        math.log(reach * max(left["cost_high"], right["cost_high"])),
        400,
    )

    def gap(mine: np.ndarray, other: np.ndarray) -> np.ndarray:
        x, y = grid - math.log(left["cost_unit"]), grid - math.log(right["cost_unit"])
        return np.asarray(_law(mine, x) - _law(other, y))

    rng = np.random.default_rng(seed)
    fitted = gap(_theta(left)[None], _theta(right)[None])
    drawn = gap(_draw(left, draws, rng), _draw(right, draws, rng))
    down = bool(fitted[0, 0] > 0)
    crossed = _first_crossing(fitted if down else -fitted, grid)[0]
    if not np.isfinite(crossed):
        return pd.DataFrame([row | {"why": f"the fits do not cross up to {reach:g} times the largest cost"}])
    at = _first_crossing(drawn if down else -drawn, grid)
    low, high = np.exp(np.quantile(at, [alpha / 2, 1 - alpha / 2], method="inverted_cdf"))
    share = float(np.mean(np.isfinite(at) & (at > grid[0])))
    cost = math.exp(crossed)
    beyond = cost > min(left["cost_high"], right["cost_high"])
    found = {"cost": cost, "low": low, "high": high, "share": share, "extrapolated": beyond, "why": ""}
    return pd.DataFrame([found])


def _first_crossing(gap: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Per row of (rows, grid), where it first falls to 0 or below, linear in between; infinite where it never does."""
    below = gap <= 0
    k = below.argmax(axis=1)
    rows, before = np.arange(len(gap)), np.maximum(k - 1, 0)
    drop = gap[rows, before] - gap[rows, k]
    share = np.divide(gap[rows, before], drop, out=np.zeros(len(gap)), where=drop > 0)
    at = grid[before] + np.where(k > 0, share * (grid[k] - grid[before]), 0.0)
    return np.where(below.any(axis=1), at, np.inf)


def _theta(fit: pd.Series) -> np.ndarray:
    return np.array([fit["limit"], math.log(fit["scale"]), math.log(fit["exponent"])])


def _covariance(fit: pd.Series) -> np.ndarray:
    return np.array(fit["covariance"], dtype="float64").reshape(_PARAMETERS, _PARAMETERS)


def _draw(fit: pd.Series, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Parameter vectors (draws, 3); exponents beyond their bounds are put there."""
    law = stats.multivariate_t(_theta(fit), _covariance(fit), df=fit["df"], allow_singular=True)
    theta: np.ndarray = np.atleast_2d(law.rvs(size=draws, random_state=rng))
    theta[:, 2] = theta[:, 2].clip(*np.log(_EXPONENTS))
    theta[:, 1] = theta[:, 1].clip(-50.0, 50.0)
    return theta
