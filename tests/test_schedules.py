"""When, how far and where arms grow: schedules, depth, growth restricted to parts and layers; all from the study."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st

from growbench.arms import Arm, Point
from growbench.launch import local
from growbench.plan import Plan
from growbench.shape import PARTS, Shape, partial
from growbench.tables import tables

TOTAL = 40 * toy.STEP
SMALL: dict[str, Any] = {"layers": 2, "residual": 8, "ffn": 16} | toy.HEADS
WIDE: dict[str, Any] = {"layers": 2, "residual": 16, "ffn": 32} | toy.HEADS | {"heads": 4}
TOKENS: dict[str, Any] = {"layers": 2, "residual": 16, "tokens": 4, "ffn": 16} | toy.HEADS | toy.EVERYWHERE
MORE_TOKENS: dict[str, Any] = {"layers": 2, "residual": 16, "tokens": 8, "ffn": 32} | toy.HEADS | toy.EVERYWHERE


OTHER = '''
from dataclasses import replace
from growbench.strategy import Strategy
from growbench.maps import zero_pad


class Other(Strategy):
    """The same size less one unit in one layer."""

    def target(self, source, target):
        return replace(target, ffn=(target.at("ffn", 0) - 1, target.at("ffn", 1)))

    def widen(self, axis, old, new, rng):
        return zero_pad(old, new)
'''


def arms(plan: Plan) -> dict[str, Arm]:
    return {arm.about["arm"].partition("/")[2]: arm for arm in plan.arms}


def growths(plan: Plan, arm: Arm) -> list[int]:
    """Positions at which an arm's longest path grows."""
    out, tokens = [], 0
    for key in arm.points[-1].path:
        stage = plan.stages[key]
        out += [tokens] if stage.kind == "grow" else []
        tokens += stage.tokens
    return out


def run(plan: Plan, out: Path) -> pd.DataFrame:
    summary = local.run(plan, out, workers=2, listener=lambda event: None)
    assert (summary.failed, summary.blocked) == (0, 0)
    return tables(out)[0]


def test_schedules_make_a_grid_with_the_strategies(tmp_path: Path) -> None:
    schedules = {
        "early": {"split": [0.25]},
        "decayed": {"source": "decayed"},
        "reset": {"moments": "reset", "rewarm": 0.1},
    }
    plan = toy.plan(tmp_path, strategies=["scratch", "continue", "zero_pad", "net2net"], schedules=schedules)
    found = arms(plan)
    grown = {f"{name}{suffix}" for name in ("zero_pad", "net2net") for suffix in ("", *(f" @{s}" for s in schedules))}
    assert set(found) == {"scratch", "scratch@0", "continue"} | grown
    assert growths(plan, found["zero_pad"]) == growths(plan, found["zero_pad @reset"]) == [TOTAL // 2]
    assert growths(plan, found["zero_pad @early"]) == [TOTAL // 4]
    decayed = found["zero_pad @decayed"].points[-1].path
    kinds = [plan.stages[key].kind for key in decayed]
    assert kinds[kinds.index("grow") - 1] == "cooldown"
    for arm in found.values():
        for point in arm.points:
            assert sum(plan.stages[key].tokens for key in point.path) == point.budget
    early = {point.budget for point in found["scratch@0"].points}
    assert {TOTAL // 4, TOTAL // 2} <= early  # what owning the small rung costs under either schedule
    results = run(plan, tmp_path / "out").query("budget == @TOTAL")
    assert set(results["status"]) == {"ok"}
    assert results[results["growth_steps"] == 1]["loss"].nunique() == 8  # every schedule makes a run of its own


def test_a_schedule_can_leave_rungs_out(tmp_path: Path) -> None:
    ladder = [SMALL, SMALL | {"residual": 12, "ffn": 24, "heads": 3}, WIDE]
    plan = toy.plan(
        tmp_path,
        strategies=["scratch", "zero_pad"],
        ladders={"transformer": ladder},
        budget={"split": [0.25, 0.5]},
        schedules={"direct": {"rungs": [0, 2], "split": [0.4]}},
    )
    found = arms(plan)
    assert growths(plan, found["zero_pad"]) == [TOTAL // 4, TOTAL // 2]
    assert growths(plan, found["zero_pad @direct"]) == [16 * toy.STEP]
    sizes = [point.size for point in found["zero_pad"].points]
    assert [size["rung"] for size in sizes] == [1, 2, 2]
    assert all(size["matched"] for size in sizes)
    assert {point.ladder for point in found["zero_pad @direct"].points} == {()}  # it does not own the middle rung
    for name in found.keys() - {"zero_pad @direct"}:
        assert all(set(point.path) <= set(point.ladder) for point in found[name].points)


def test_scratch_of_a_rung_on_the_way_has_a_point_at_the_grown_path_s_cost(tmp_path: Path) -> None:
    ladder = [SMALL, SMALL | {"residual": 12, "ffn": 24, "heads": 3}, WIDE]
    plan = toy.plan(
        tmp_path,
        strategies=["scratch", "zero_pad"],
        ladders={"transformer": ladder},
        budget={"split": [0.25, 0.5]},
    )
    found = arms(plan)

    def cost(point: Point) -> float:
        return sum(plan.stages[key].flops for key in point.path)

    grown = cost(next(point for point in found["zero_pad"].points if point.size["rung"] == 1))
    scratch = [cost(point) for point in found["scratch@1"].points]
    step = plan.stages[found["scratch@1"].points[0].path[-1]]
    assert min(abs(flops - grown) for flops in scratch) <= step.flops / step.tokens * toy.STEP / 2
    assert min(scratch) < grown * 1.05 < max(scratch)


def test_scratch_of_every_shape_has_a_name_of_its_own(tmp_path: Path) -> None:
    plan = toy.plan(
        tmp_path,
        strategies=["scratch", {"name": "zero_pad", "only": "ffn"}, {"name": "other", "only": "ffn"}],
        ladders={"transformer": [SMALL, WIDE]},
        plugins=[toy.plugin(tmp_path, "other", OTHER)],
    )
    grown = {"zero_pad[ffn]", "other[ffn]"}
    assert set(arms(plan)) == {"scratch", "scratch@0", "scratch[ffn]", "scratch@other[ffn]"} | grown


def test_the_rate_rises_anew_after_growth(tmp_path: Path) -> None:
    """rewarm 0.1 of 40 steps: over the four steps after growth the rate is 1/4, 2/4, 3/4 and all of itself."""
    plan = toy.plan(tmp_path, strategies=["zero_pad"], budget={"rewarm": 0.1}, train={"eval_every": toy.STEP})
    run(plan, tmp_path / "out")
    curves = tables(tmp_path / "out")[1].query("kind == 'train' and tokens > @TOTAL / 2").head(6)
    assert [float(rate) for rate in curves["learning_rate"]] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


DEPTH = ["stack", "interleave", "gradual_stack", {"name": "gradual_stack", "where": "middle"}, "solar", "identity"]


def test_depth_strategies_run_on_a_ladder_of_layers(tmp_path: Path) -> None:
    tokens = SMALL | toy.EVERYWHERE | {"tokens": 2, "ffn": 24}
    ladders = {"transformer": [SMALL, SMALL | {"layers": 4}], "tokenformer": [tokens, tokens | {"layers": 4}]}
    plan = toy.plan(tmp_path, strategies=["scratch", *DEPTH, "zero_depth", "net2net"], ladders=ladders)
    results = run(plan, tmp_path / "out").query("budget == @TOTAL")
    grown = results[results["growth_steps"] == 1]
    assert set(results["status"]) == {"ok"}
    assert len(grown) == 2 * 8
    assert grown["matched"].all()
    exact = grown["strategy"].isin(["identity", "zero_depth", "net2net"])
    assert (grown.loc[exact, "growth_gap"] < 1e-4).all()
    assert (grown.loc[~exact, "growth_gap"] > 1e-2).all()
    assert (grown["alive_share"].dropna() > 1e-4).all()


@pytest.mark.parametrize(
    ("restriction", "arm", "kept"),
    [
        ({"only": "ffn"}, "zero_pad[ffn]", {"residual": 8, "heads": 2}),
        ({"only": ["attention"]}, "zero_pad[attention]", {"residual": 8, "ffn": 16}),
        ({"layers": "1"}, "zero_pad[layers 1]", {"residual": 8}),
        ({"only": ["ffn"], "layers": "0-1", "arm": "mine"}, "mine", {"residual": 8, "heads": 2}),
    ],
)
def test_growth_is_restricted_without_code_in_the_strategy(
    restriction: dict[str, Any], arm: str, kept: dict[str, int], tmp_path: Path
) -> None:
    """A restricted arm reaches the ladder's size in the chosen parts; a scratch arm of its shape stands beside it."""
    restricted = {"name": "zero_pad", **restriction}
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad", restricted], ladders={"transformer": [SMALL, WIDE]})
    final = arms(plan)[arm].points[-1]
    scratch = next(a for name, a in arms(plan).items() if name.startswith("scratch["))
    assert final.size["matched"]
    assert final.size["shape"] == scratch.points[-1].size["shape"] != arms(plan)["scratch"].points[-1].size["shape"]
    assert final.size["params_non_embedding"] == pytest.approx(Shape(**WIDE).params_non_embedding, rel=0.01)
    for name, size in kept.items():
        assert f"{name} {size}," in final.size["shape"] + ","
    if restriction.get("layers") == "1":
        assert "heads 2/" in final.size["shape"]
        assert "ffn 16/" in final.size["shape"]
    results = run(plan, tmp_path / "out").query("budget == @TOTAL")
    assert set(results["status"]) == {"ok"}
    assert (results[results["growth_steps"] == 1]["growth_gap"] < 1e-4).all()


@given(
    st.sampled_from(sorted(PARTS)),
    st.sampled_from([SMALL, TOKENS]),
    st.integers(2, 6),
    st.sampled_from([[0], [1], [0, 1]]),
)
def test_restricted_shapes_grow_where_they_may(part: str, rung: dict[str, Any], times: int, layers: list[int]) -> None:
    source = Shape(**rung)
    names = set(PARTS[part])
    if not any(getattr(source, name) for name in names):
        return
    goal = source.params_non_embedding * times
    try:
        shape = partial(source, goal, [part], layers)
    except ValueError as error:
        assert "at the nearest" in str(error)  # noqa: PT017
        return
    assert abs(shape.params_non_embedding - goal) <= 0.01 * goal
    assert shape.residual == source.residual or "residual" in names
    for name in ("heads", "ffn", "tokens"):
        for layer in range(2):
            grew = shape.at(name, layer) != source.at(name, layer)
            assert not grew or (name in names and layer in layers)


def test_a_coarse_residual_leaves_the_rest_to_finer_sizes() -> None:
    """One more residual unit is 4 % of these weights: the feed-forward fills what it leaves."""
    source = Shape(layers=1, residual=8, heads=1, key=8, value=8, ffn=32)
    shape = partial(source, 3456, ["residual", "ffn"], [0])
    assert shape.params_non_embedding == pytest.approx(3456, rel=0.01)
    assert shape.residual > 8
    assert shape.ffn > 32  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strategies": [{"name": "zero_pad", "only": "ffm"}]}, "did you mean ffn"),
        ({"strategies": [{"name": "zero_pad", "layers": "2-x"}]}, "numbers and ranges"),
        ({"strategies": [{"name": "zero_pad", "layers": "5"}]}, "restricted to layer 5 of a source with layers 0 to 1"),
        ({"strategies": [{"name": "zero_pad", "only": "tokens"}]}, "at the nearest"),
        ({"schedules": {"early": {"splitt": [0.2]}}}, "did you mean split"),
        ({"schedules": {"early": {"split": [0.2, 0.4]}}}, "schedule 'early': split has 2 fractions and 2 rungs"),
        ({"schedules": {"early": {"rungs": [1, 0]}}}, "schedule 'early': rungs must rise and end with the last, 1"),
        ({"schedules": {"late": {"split": [0.72]}}}, "before the last growth"),
        ({"budget": {"rewarm": 0.4}}, "warm-up included, ends at"),
    ],
)
def test_what_cannot_be_met_is_said_by_the_plan(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    given_ = {"strategies": ["scratch", "zero_pad"], "ladders": {"transformer": [SMALL, WIDE]}} | changes
    with pytest.raises(ValueError, match=sentence):
        toy.plan(tmp_path, **given_)
