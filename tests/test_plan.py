"""The plan: shared stages, exact budgets, keys that change when a number can and never else, and refusals in time."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st

from growbench import ledger
from growbench.plan import Plan, make_plan
from growbench.settings import Setting, Tuned
from growbench.shape import Shape
from growbench.store import Stage, Store
from growbench.study import Study, read_study, shipped

BOTH = ("transformer", "tokenformer")


def path_of(plan: Plan, arm: str, budget: int | None = None) -> list[Stage]:
    """The stages of an arm of seed 0, up to its largest budget if none is given."""
    found = next(a for a in plan.arms if a.about["arm"] == arm and a.about["seed"] == 0)
    point = next(p for p in found.points if p.budget == (budget or max(q.budget for q in found.points)))
    return [plan.stages[key] for key in point.path]


# --- shared stages ---------------------------------------------------------------------------------------------------


def test_one_source_serves_all_strategies_and_only_branches_differ(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "continue", "zero_pad", "net2net", "lora"], seeds=2)
    kinds = [stage.kind for stage in plan.stages.values()]
    assert kinds.count("init") == 2 * 2  # seeds x rungs
    assert kinds.count("grow") == 2 * 3
    sources = [path_of(plan, f"transformer/{name}") for name in ("zero_pad", "net2net", "lora")]
    trunks = [[s.key for s in path[: next(i for i, s in enumerate(path) if s.kind == "grow")]] for path in sources]
    assert trunks[0] == trunks[1] == trunks[2]
    assert trunks[0] == [s.key for s in path_of(plan, "transformer/continue")][: len(trunks[0])]
    grown = {path[len(trunks[0])].key for path in sources}
    assert len(grown) == 3


def test_parents_come_first_and_every_stage_but_a_check_is_on_the_path_of_an_arm(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"], architectures=BOTH, seeds=2)
    seen: set[str] = set()
    for key, stage in plan.stages.items():
        assert stage.key == key
        assert stage.parent is None or stage.parent in seen
        seen.add(key)
    for arm in plan.arms:
        for point in arm.points:
            assert all(plan.stages[b].parent == a for a, b in pairwise(point.path))
            assert plan.stages[point.path[0]].kind == "init"
            assert plan.stages[point.path[-1]].kind == "cooldown"
            assert set(point.path) <= set(point.ladder)
    on_paths = {key for arm in plan.arms for point in arm.points for key in point.ladder}
    assert seen - on_paths == {key for key, stage in plan.stages.items() if stage.kind == "coordinates"}


def test_the_cost_is_the_sum_over_distinct_stages_and_of_paths_beside_it(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad", "net2net"], architectures=BOTH)
    shapes: dict[str | None, Shape] = {}
    expected: dict[str, float] = {}
    for key, stage in plan.stages.items():
        given = stage.identity.get("shape")
        shapes[key] = Shape.read(given) if given else shapes[stage.parent]
        expected[key] = stage.tokens * ledger.train_flops(shapes[key])
    said = plan.describe()
    assert said["flops"] == said["flops_left"] == sum(expected.values())
    assert said["tokens"] == sum(stage.tokens for stage in plan.stages.values())
    assert said["flops_unshared"] == sum(expected[k] for a in plan.arms for p in a.points for k in p.path)
    assert said["flops_unshared"] > said["flops"]
    assert (said["arms"], said["rows"]) == (2 * 4, sum(len(arm.points) for arm in plan.arms))


# --- budgets ---------------------------------------------------------------------------------------------------------

fractions = st.floats(0.02, 0.98)


def refusal(make: Callable[[], object]) -> str | None:
    try:
        make()
    except ValueError as error:
        return str(error)
    return None


@settings(max_examples=60)
@given(
    steps=st.integers(20, 400),
    split=fractions,
    points=st.lists(fractions, max_size=2, unique=True),
    cooldown=st.floats(0.01, 0.6),
    source=st.sampled_from(["stable", "decayed"]),
)
def test_every_path_sums_exactly_to_its_budget_or_the_plan_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    steps: int, split: float, points: list[float], cooldown: float, source: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.getbasetemp()
    probing = toy.plugin(folder, "probing", toy.PROBING)
    budget = {"tokens": steps * toy.STEP, "split": [split], "points": [*sorted(points), 1.0], "cooldown": cooldown}
    budget |= {"source": source, "warmup": 0.0}
    given: dict[str, Any] = {"plugins": [probing], "strategies": ["scratch", "continue", "probing"], "budget": budget}
    if (refused := refusal(lambda: toy.plan(folder, **given))) is not None:
        assert "cooldown" in refused
        return
    plan = toy.plan(folder, **given)
    final = {arm.about["arm"]: max(p.budget for p in arm.points) for arm in plan.arms}
    assert final["transformer/probing"] == steps * toy.STEP
    for arm in plan.arms:
        for point in arm.points:
            path = [plan.stages[key] for key in point.path]
            assert sum(stage.tokens for stage in path) == point.budget
            assert all(stage.tokens > 0 for stage in path if stage.kind in ("train", "cooldown"))
            assert path[-1].identity["until"] == point.budget


def test_probes_are_part_of_the_budget(tmp_path: Path) -> None:
    probing = toy.plugin(tmp_path, "probing", toy.PROBING)
    plan = toy.plan(tmp_path, plugins=[probing], strategies=["scratch", "probing"])
    path = path_of(plan, "transformer/probing")
    assert [s.tokens for s in path if s.kind == "grow"] == [128]
    assert sum(s.tokens for s in path) == 40 * toy.STEP


def test_scratch_is_scored_at_the_tokens_where_others_grow_and_at_equal_flops(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "continue", "zero_pad"])
    budgets = {arm.about["arm"]: [p.budget for p in arm.points] for arm in plan.arms}
    total, half = 40 * toy.STEP, 20 * toy.STEP
    small, large = (ledger.train_flops(Shape.read(r | {"context": 16})) for r in toy.LADDERS["transformer"])
    total_costs = [half * small + tokens * large for tokens in (half / 2, half)]
    steps = [cost / toy.STEP for cost in (total_costs[0] / large, total_costs[1] / large, total_costs[1] / small)]
    nearest = [round(step) * toy.STEP for step in steps]
    assert budgets["transformer/zero_pad"] == [30 * toy.STEP, total]
    assert budgets["transformer/scratch@0"] == [half, 30 * toy.STEP, total]
    assert budgets["transformer/scratch"] == sorted({half // 2, half, 30 * toy.STEP, total, *nearest[:2]})
    assert budgets["transformer/continue"] == [30 * toy.STEP, total, nearest[2]]


def test_owning_a_ladder_is_the_grown_path_once_or_all_scratch_runs(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"])
    half, total = 20 * toy.STEP, 40 * toy.STEP
    arms = {arm.about["arm"]: {p.budget: p for p in arm.points} for arm in plan.arms}
    source = set(arms["transformer/scratch@0"][half].path)
    assert set(arms["transformer/scratch"][total].ladder) == source | set(arms["transformer/scratch"][total].path)
    assert set(arms["transformer/zero_pad"][total].ladder) == source | set(arms["transformer/zero_pad"][total].path)
    assert set(arms["transformer/scratch@0"][total].ladder) == set(arms["transformer/scratch@0"][total].path)


def test_arms_that_are_restricted_to_tasks_run_on_those_alone(tmp_path: Path) -> None:
    text = f"text:{toy.text(tmp_path)}"
    grammar = {"name": "grammar", "tokens": 20_000}
    strategies = [
        "scratch",
        {"name": "zero_pad", "tasks": [text]},
        {"name": "net2net", "tasks": ["grammar(tokens=20000)"]},
    ]
    planned = toy.plan(tmp_path, strategies=strategies, tasks=[text, grammar])
    arms = {(arm.about["task"], arm.about["strategy"]) for arm in planned.arms}
    assert arms == {
        (text, "scratch"),
        (text, "zero_pad"),
        ("grammar(tokens=20000)", "scratch"),
        ("grammar(tokens=20000)", "net2net"),
    }


def test_a_decayed_source_is_the_end_of_its_own_cooldown(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"], budget={"source": "decayed"})
    path = path_of(plan, "transformer/zero_pad")
    grown = next(i for i, stage in enumerate(path) if stage.kind == "grow")
    assert (path[grown - 1].kind, path[grown - 1].identity["until"]) == ("cooldown", 20 * toy.STEP)
    scratch = path_of(plan, "transformer/scratch@0", 20 * toy.STEP)
    assert scratch[-1].key == path[grown - 1].key


@pytest.mark.parametrize("name", shipped())
def test_the_shipped_studies_have_exact_budgets(name: str, tmp_path: Path) -> None:
    study = read_study(name)
    written = study.model_dump() | {"seeds": 1, "strategies": toy.everywhere(study)}
    written["tasks"] = [task for task in written["tasks"] if task["name"] != "shakespeare"]  # which needs a download
    plan = make_plan(Study.model_validate(written), cache=tmp_path)
    for arm in plan.arms:
        for point in arm.points:
            assert sum(plan.stages[key].tokens for key in point.path) == point.budget


# --- identity --------------------------------------------------------------------------------------------------------

STRATEGIES = ["scratch", {"name": "net2net", "noise": 0.5}, "mine"]
MINE = '''
from dataclasses import dataclass
from growbench.maps import zero_pad
from growbench.strategy import Strategy
@dataclass(frozen=True, kw_only=True)
class Mine(Strategy):
    """A pad of mine."""
    def widen(self, axis, old, new, rng):
        return zero_pad(old, new, (new / old) ** 0.5 if axis.admits == "isometry" else 1.0)
'''


def planned(folder: Path, source: str = MINE, **changes: Any) -> Plan:
    mine = toy.plugin(folder, "mine", source)
    return toy.plan(folder, plugins=[mine], **{"strategies": STRATEGIES} | changes)


SAME: dict[str, dict[str, Any]] = {
    "an arm's label": {"strategies": ["scratch", {"name": "net2net", "noise": 0.5, "arm": "other"}, "mine"]},
    "the study's name": {"study": "other", "about": "Another."},
    "one strategy more": {"strategies": [*STRATEGIES, "lora"]},
    "one seed more": {"seeds": 2},
    "one architecture more": {"architectures": BOTH},
    "a default written out": {"train": {"weight_decay": 0.0, "betas": [0.9, 0.95]}},
}
ALL: dict[str, dict[str, Any]] = {
    "learning rate": {"train": {"learning_rate": 0.02}},
    "batch": {"train": {"batch": 2}},
    "precision": {"train": {"precision": "64-true"}},
    "optimizer": {"train": {"optimizer": "sgd"}},
    "warmup": {"budget": {"warmup": 0.1}},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_changes_no_number_changes_no_key(changes: dict[str, Any], tmp_path: Path) -> None:
    assert planned(tmp_path).stages.keys() <= planned(tmp_path, **changes).stages.keys()


@pytest.mark.parametrize("changes", ALL.values(), ids=ALL)
def test_what_changes_every_number_of_an_arm_changes_every_key(changes: dict[str, Any], tmp_path: Path) -> None:
    assert of_arms(planned(tmp_path)).keys().isdisjoint(of_arms(planned(tmp_path, **changes)).keys())


def of_arms(plan: Plan) -> dict[str, Stage]:
    return {key: stage for key, stage in plan.stages.items() if stage.kind != "coordinates"}


def test_the_parametrization_and_the_data_and_the_seed_are_part_of_every_key(tmp_path: Path) -> None:
    before = planned(tmp_path)
    assert before.stages.keys().isdisjoint(planned(tmp_path, parametrization="standard").stages.keys())
    toy.text(tmp_path, seed=1)
    assert before.stages.keys().isdisjoint(planned(tmp_path).stages.keys())
    seeds = {stage.key: stage.identity["seed"] for stage in of_arms(planned(tmp_path, seeds=2)).values()}
    assert sorted(seeds.values()).count(0) == len(seeds) / 2


def test_fresh_seeds_share_nothing_with_the_others(tmp_path: Path) -> None:
    def trained(**changes: Any) -> dict[str, int]:
        plan = planned(tmp_path, **changes)
        assert {arm.about["seed"] for arm in plan.arms} == set(plan.study.seed_numbers)
        keys = {key for arm in plan.arms for point in arm.points for key in point.ladder}
        return {key: plan.stages[key].identity["seed"] for key in keys}

    first, fresh = trained(seeds=2), trained(seeds=2, first_seed=2)
    assert (set(first.values()), set(fresh.values())) == ({0, 1}, {2, 3})
    assert trained(seeds=4) == first | fresh
    assert len(first) == len(fresh)


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (MINE + "# a comment\n", {}),
        (MINE, {"strategies": ["scratch", {"name": "net2net", "noise": 0.25}, "mine"]}),
    ],
    ids=["a plugin's source", "a parameter"],
)
def test_a_changed_strategy_changes_what_is_grown_by_it_and_nothing_else(
    source: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    before, after = planned(tmp_path), planned(tmp_path, source, **changes)
    name = "mine" if source != MINE else "net2net"
    changed = {key for key in before.stages if key not in after.stages}
    by = {key: stage.identity.get("strategy", {}).get("name") for key, stage in before.stages.items()}
    expected = set()
    for key, stage in before.stages.items():
        if by[key] == name or stage.parent in expected:
            expected.add(key)
    assert changed == expected
    assert changed


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({"train": {"moments": "reset"}}, "grow"), ({"budget": {"rewarm": 0.1}}, "train")],
    ids=["moments", "rewarm"],
)
def test_how_an_arm_grows_changes_nothing_before(changes: dict[str, Any], kind: str, tmp_path: Path) -> None:
    before, after = planned(tmp_path), planned(tmp_path, **changes)
    changed = [stage for key, stage in before.stages.items() if key not in after.stages]
    grown = {key for key, stage in before.stages.items() if ">" in stage.label}
    if kind == "train":
        grown = {key for key in grown if before.stages[key].kind != "grow"}
    assert {stage.key for stage in changed} == grown


def test_neither_workers_nor_the_output_folder_are_known_to_a_stage(tmp_path: Path) -> None:
    text = json.dumps([stage.identity for stage in planned(tmp_path).stages.values()])
    assert all(f'"{word}"' not in text for word in ("workers", "threads", "out", "host", "arm", "label"))


# --- refusals --------------------------------------------------------------------------------------------------------


def ladders(**changes: Any) -> dict[str, Any]:
    return {"ladders": {"transformer": [toy.LADDERS["transformer"][0], toy.LADDERS["transformer"][1] | changes]}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"budget": {"tokens": 2561}}, r"2,561 tokens cannot be met in steps of 64 .*: give 2,560 or 2,624"),
    ({"budget": {"tokens": 64 * 3, "warmup": 0.0}}, r"cannot be met: its cooldown begins at 64.*raise the budget"),
    (ladders(key=8), r"rungs 0 and 1 of transformer: axis 0/key cannot grow from 4 to 8: .*grow heads"),
    (ladders(ffn=8), r"axis 0/ffn would shrink from 16 to 8: order a ladder's rungs from small to large"),
    (ladders(nonlinearity="relu"), r"they differ in nonlinearity, which no growth changes: keep it equal"),
    (ladders(fnf=8), r"rung 1 of transformer: a rung has no field 'fnf': did you mean ffn\?"),
    ({"strategies": ["zero_pda"]}, r"unknown strategy 'zero_pda': did you mean zero_pad\?"),
    ({"strategies": [{"name": "lora", "rnk": 2}]}, r"has no parameter 'rnk': did you mean rank\?"),
    ({"tasks": ["pycod"]}, r"unknown task 'pycod': did you mean pycode\?"),
    ({"tasks": ["pycode:x"]}, r"task 'pycode' takes no argument: write it without ':x'"),
    ({"tasks": ["text:/no/such/file"]}, r"text:/no/such/file cannot be read"),
    (
        {"train": {"context": 2000, "batch": 1}, "budget": {"tokens": 20_000}},
        r"shorter than one window .*lower the study's train\.context",
    ),
    ({"only": "zero_q*"}, r"no arm matches 'zero_q\*': the arms are transformer/scratch, transformer/scratch@0"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_what_cannot_be_met_is_said_before_anything_is_trained(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        toy.plan(tmp_path, **{"strategies": ["scratch", "zero_pad"]} | changes)


def test_rungs_of_unequal_size_across_architectures_are_refused(tmp_path: Path) -> None:
    rungs = {name: list(ladder) for name, ladder in toy.LADDERS.items()}
    rungs["tokenformer"][1] = rungs["tokenformer"][1] | {"tokens": 9}
    with pytest.raises(
        ValueError, match=r"rung 1 is not of one size .*transformer 2,560, tokenformer 2,\d+; 1% .*params"
    ):
        toy.plan(tmp_path, strategies=["scratch"], ladders=rungs)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "return zero_pad(old, new,",
            "return zero_pad(old, new + 1,",
            r"strategy 'mine' \(file .*\) cannot grow from rung 0 .*: widen maps axis 0/head from 2 to 5 units",
        ),
        ("def widen", "def wider", "has no map for axis .*: override widen"),
        ("(Strategy)", "", r"'mine' \(file .*\) is no growbench\.strategy\.Strategy: derive its class"),
        (
            '"""A pad of mine."""',
            "probe_batches = 20",
            "cannot be met: its cooldown begins at .*probes and warm-up included",
        ),
    ],
)
def test_a_strategy_that_cannot_do_it_is_said_before_anything_is_trained(
    old: str, new: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        planned(tmp_path, MINE.replace(old, new))


FAULTS = [
    ("def supports(self, source, target): raise KeyError('x')", "cannot grow from rung 0 of .*: KeyError: 'x'"),
    ("def supports(self, source, target): exit(3)", "cannot grow from rung 0 of .*: SystemExit: 3"),
    ("def supports(self, source, target): return None", "supports gives NoneType where str is expected"),
    ("def target(self, source, target): return 1 / 0", "ZeroDivisionError: division by zero"),
    ("def target(self, source, target): return {}", "target gives dict where Shape is expected"),
    ("def widen(self, axis, old, new, rng): return old", "widen gives int where AxisMap is expected"),
    ("def widen(self, axis, old, new, rng): return [][0]", "IndexError: list index out of range"),
    ("def deepen(self, old, new): return (0, 1)", "deepen gives tuple where LayerMap is expected"),
    ("probe_batches = -1", "cannot be used: probe_batches must be 0 or more, not -1"),
    ("probe_batches = True", "cannot be used: probe_batches must be 0 or more, not True"),
    ("probe_batches = 1.5", "cannot be used: probe_batches gives float where int is expected"),
    ("probe_batches = property(lambda self: self.absent)", "cannot be used: AttributeError: 'Mine' object has no"),
    ("preserves = 'all'", "preserves must be function or nothing, not 'all'"),
    ("preserves = property(lambda self: 1 / 0)", "cannot be used: ZeroDivisionError"),
    ("sterile = None", "sterile gives NoneType where str is expected"),
    ("def __post_init__(self): raise ValueError('no')", "cannot be used: no$"),
]


@pytest.mark.parametrize(("fault", "sentence"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_faulty_strategy_is_named_with_its_file_and_fault(fault: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^strategy 'mine' \(file .*mine\.py\) .*{sentence}"):
        planned(tmp_path, MINE + f"    {fault}\n")


TASK = """
from growbench.task import Data, Task
class Words(Task):
    def load(self, cache):
        return Data.from_bytes(bytes(4000), bytes(400))
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("def load", "def lode", "cannot be loaded: TypeError: .*abstract method"),
        ("return Data", "return 1 / 0, Data", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("return Data", "return str, Data", "cannot be loaded: load gives tuple where Data is expected"),
        ("    def load", "    def missing(self, cache): exit()\n    def load", "cannot be loaded: SystemExit"),
        (
            "    def load",
            "    def missing(self, cache): pass\n    def load",
            "cannot be loaded: missing gives NoneType where str is",
        ),
        ("(4000)", "(4)", "cannot be loaded: a stream of 4 tokens is shorter than"),
    ],
)
def test_a_faulty_task_is_named_with_its_file_and_fault(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    path = toy.plugin(tmp_path, "words", TASK)
    assert toy.plan(tmp_path, strategies=["scratch"], tasks=["words"], plugins=[path]).arms
    toy.plugin(tmp_path, "words", TASK.replace(old, new))
    with pytest.raises(ValueError, match=rf"^task 'words' \(file .*words\.py\) {sentence}"):
        toy.plan(tmp_path, strategies=["scratch"], tasks=["words"], plugins=[path])


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        (
            "scratch@0",
            r"two arms are named transformer/scratch@0, one of zero_pad \(arm: scratch@0\) and one of scratch:",
        ),
        (
            "net2net @late",
            r"named transformer/net2net @late, one of zero_pad \(arm: net2net @late\) and one of net2net:",
        ),
    ],
)
def test_a_label_that_is_another_arm_s_name_is_refused(label: str, sentence: str, tmp_path: Path) -> None:
    strategies = ["scratch", {"name": "zero_pad", "arm": label}, "net2net"]
    with pytest.raises(ValueError, match=sentence + " give one strategy another `arm` label"):
        toy.plan(tmp_path, strategies=strategies, schedules={"late": {"split": [0.6]}})


def test_a_strategy_that_does_not_apply_is_listed_with_its_reason(tmp_path: Path) -> None:
    plan = toy.plan(
        tmp_path, strategies=["zero_pad", {"name": "zero_tokens", "factor": "rescaled"}], architectures=BOTH
    )
    rescaled = "zero_tokens(factor=rescaled)"
    assert {arm.about["arm"] for arm in plan.arms} == {f"{a}/zero_pad" for a in BOTH} | {f"tokenformer/{rescaled}"}
    assert list(plan.skipped) == [f"transformer/{rescaled}"]
    assert "no norm runs over the tokens" in plan.skipped[f"transformer/{rescaled}"]


@pytest.mark.parametrize("pattern", ["zero_*", "transformer/zero_*", "*/zero_pad"])
def test_a_pattern_chooses_arms_with_or_without_their_architecture(pattern: str, tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad", "net2net"], only=pattern)
    assert {arm.about["arm"] for arm in plan.arms} == {"transformer/zero_pad"}
    assert plan.stages.keys() < toy.plan(tmp_path, strategies=["scratch", "zero_pad", "net2net"]).stages.keys()


# --- what is there already -------------------------------------------------------------------------------------------

ROOTS = ("init", "coordinates")
"""Kinds of stages without a parent."""


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda folder: planned(folder, MINE + "# a comment\n"), {"grow": "strategy: plugin changed"}),
        (
            lambda folder: planned(folder, train={"learning_rate": 0.5}),
            dict.fromkeys(ROOTS, "train: learning_rate changed"),
        ),
        (lambda folder: planned(folder, parametrization="standard"), dict.fromkeys(ROOTS, "scaling: name changed")),
    ],
    ids=["plugin", "learning rate", "parametrization"],
)
def test_it_says_why_a_stage_is_not_there(changed: Callable[[Path], Plan], why: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert {row["why"] for row in planned(tmp_path).describe(out)["stages"]} == {"not run yet"}
    toy.work(planned(tmp_path), out)
    rows = planned(tmp_path).describe(out)["stages"]
    assert all(row["cached"] and row["why"] == "" for row in rows)
    said = {row["kind"]: row["why"] for row in changed(tmp_path).describe(out)["stages"] if not row["cached"]}
    assert said == dict.fromkeys(said, "its parent changed") | why


def test_the_latest_stage_at_a_place_explains_it_and_a_failure_gives_its_reason(tmp_path: Path) -> None:
    plan, store = planned(tmp_path), Store(tmp_path / "out")
    records = list(toy.work(plan, store.out).values())
    grow = next(record for record in records if record.kind == "grow" and "mine" in record.label)
    store.write(replace(grow, status="failed", reason="ValueError: no"))
    why = {row["stage"]: row["why"] for row in plan.describe(store.out)["stages"]}
    assert why[grow.key] == "failed: ValueError: no"
    assert plan.describe(store.out)["rate_measured"]
    again = planned(tmp_path, train={"learning_rate": 0.5})
    toy.work(again, store.out)
    back = {row["why"] for row in planned(tmp_path, train={"learning_rate": 0.1}).describe(store.out)["stages"]}
    assert back == {"train: learning_rate changed", "its parent changed"}


def test_the_plan_s_file_holds_what_the_tables_need(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    read = json.loads(json.dumps(plan.to_dict()))
    assert read["stages"].keys() == plan.stages.keys()
    assert [point["budget"] for arm in read["arms"] for point in arm["points"]] == [
        point.budget for arm in plan.arms for point in arm.points
    ]
    assert {strategy["name"]: strategy["summary"] for strategy in read["strategies"]}["mine"] == "A pad of mine."
    assert Study.model_validate(plan.study.model_dump()) == plan.study


def test_the_plan_notes_what_a_reader_would_hold_against_the_study(tmp_path: Path) -> None:
    def notes(**changes: Any) -> str:
        return " ".join(toy.plan(tmp_path, **changes).describe()["notes"])

    untuned = "every arm has the study's learning rate: no verdict rests on an untuned study"
    assert notes(strategies=["scratch", "zero_pad"]) == untuned
    assert "no arm is trained from scratch" in notes(strategies=["zero_pad"])
    small = {"transformer": [toy.LADDERS["transformer"][0]] * 2}
    assert "nothing grows" in notes(strategies=["scratch", "zero_pad"], ladders=small)
    long = notes(strategies=["scratch", "zero_pad"], budget={"tokens": 160 * toy.STEP})
    assert "is read 1.4 times" in long  # 10,240 of 7,200 bytes
    tuning = {"trials": 3, "tokens": 20 * toy.STEP, "learning_rate": [0.001, 0.1]}
    assert notes(strategies=["scratch", "zero_pad"], tuning=tuning) == (
        "tuning is not done: until it is, stages are those of the study's own learning rate"
    )


@pytest.mark.parametrize(("rates", "count"), [((0.01, 0.01), 0), ((0.01, 0.1), 1), ((0.001, 0.1), 2)])
def test_a_choice_at_the_edge_of_what_was_tried_is_said(rates: tuple[float, float], count: int, tmp_path: Path) -> None:
    study = toy.study(tmp_path, strategies=["scratch", "zero_pad"])
    arms = dict(zip(("transformer/scratch", "transformer/zero_pad"), map(setting, rates), strict=True))
    trials = [{"arm": arm, "learning_rate": rate} for arm in arms for rate in (0.01, 0.1, 0.001)]
    tuned = Tuned(chosen={study.tasks[0].label: arms}, trials=trials, flops={}, flops_total=0.0)
    said = (
        f"{count} of 2 arms, counted by task, chose the smallest or largest learning rate tried: "
        "widen tuning.learning_rate"
    )
    assert make_plan(study, tuned=tuned).describe()["notes"] == ([said] if count else [])


def setting(rate: float) -> Setting:
    return Setting(learning_rate=rate)
