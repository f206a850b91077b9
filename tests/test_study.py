"""The study file: it says what it says after a round trip, and each mistake is answered by one sentence."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from growbench import plugins
from growbench.study import Study, parse_study, read_study, shipped

SMALL: dict[str, Any] = {
    "study": "small",
    "about": "One sentence.",
    "tasks": ["pycode", "text:plays.txt", {"name": "grammar", "states": 8}],
    "seeds": 2,
    "ladders": {"transformer": [{"layers": 1}, {"layers": 2}], "tokenformer": [{"tokens": 1}, {"tokens": [2, 3]}]},
    "strategies": ["scratch", {"name": "zero_pad", "scaled": False}, {"name": "zero_pad", "arm": "pad"}],
    "budget": {"tokens": 4096, "split": [0.5]},
    "train": {"context": 8, "batch": 4, "learning_rate": "1e-2", "eval_every": 1024, "eval_tokens": 512},
}


def changed(**parts: Any) -> str:
    """The small study as text; a mapping updates a part, None removes it, anything else replaces it."""
    study = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    for key, value in parts.items():
        if isinstance(value, dict) and isinstance(study.get(key), dict):
            study[key].update(value)
        else:
            study[key] = value
    return yaml.safe_dump({key: value for key, value in study.items() if value is not None})


fractions = st.floats(min_value=1e-3, max_value=0.999)
specs = st.builds(
    lambda name, parameters: {"name": name, **parameters},
    st.sampled_from(["scratch", "zero_pad", "net2net"]),
    st.dictionaries(
        st.sampled_from(["scaled", "noise", "rank"]), st.booleans() | st.integers() | st.floats(allow_nan=False)
    ),
)


@given(
    seeds=st.integers(1, 99),
    split=fractions,
    cooldown=st.floats(min_value=1e-3, max_value=0.5),
    strategies=st.lists(specs, min_size=1, max_size=4, unique_by=str),
    moments=st.sampled_from(["carried", "reset"]),
)
def test_a_study_written_out_and_read_again_is_the_same(
    seeds: int, split: float, cooldown: float, strategies: list[dict[str, Any]], moments: str
) -> None:
    budget = {"split": [split / 2], "cooldown": cooldown, "warmup": 0.0}
    study = parse_study(
        changed(seeds=seeds, budget=budget, strategies=strategies, train={"moments": moments}), "small.yaml"
    )
    assert parse_study(study.to_yaml(), "again") == study
    assert study.at(seeds=seeds + 1).at(seeds=seeds) == study
    assert study.at() == study


def test_a_spec_is_a_name_a_name_with_an_argument_or_a_mapping() -> None:
    study = parse_study(changed(), "small.yaml")
    assert [(task.name, task.argument, task.parameters) for task in study.tasks] == [
        ("pycode", None, {}),
        ("text", "plays.txt", {}),
        ("grammar", None, {"states": 8}),
    ]
    assert [task.label for task in study.tasks] == ["pycode", "text:plays.txt", "grammar(states=8)"]
    assert [spec.label for spec in study.strategies] == ["scratch", "zero_pad(scaled=false)", "pad"]
    assert study.train.learning_rate == 0.01  # "1e-2" is text to YAML, a number to everyone else


TUNING = {"trials": 4, "tokens": 2048, "learning_rate": [0.001, 0.1]}


def test_a_range_is_written_as_two_ends_and_a_study_can_be_left_untuned() -> None:
    study = parse_study(changed(tuning=TUNING | {"warmup": [0.01, 0.3]}, first_seed=7), "small.yaml")
    assert study.tuning is not None
    assert (study.tuning.learning_rate.low, study.tuning.learning_rate.high) == (0.001, 0.1)
    assert study.model_dump()["tuning"]["warmup"] == [0.01, 0.3]
    assert parse_study(study.to_yaml(), "again") == study
    untuned = study.at(untuned=True)
    assert untuned.tuning is None
    assert untuned == parse_study(changed(first_seed=7), "small.yaml")
    assert list(study.at(first_seed=3, seeds=4).seed_numbers) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("budget", "room"),
    [
        ({"split": [0.2], "points": [1.0], "cooldown": 0.5}, 0.2),  # before the first growth
        ({"split": [0.5], "points": [0.75, 1.0], "cooldown": 0.2}, 0.1),  # from growth to the first cooldown
        ({"split": [0.7], "points": [1.0], "cooldown": 0.1}, 0.2),
    ],
)
def test_a_warm_up_has_room_from_scratch_and_after_growth(budget: dict[str, Any], room: float) -> None:
    study = parse_study(changed(budget=budget | {"warmup": 0.0}), "small.yaml")
    assert study.budget.room == pytest.approx(room)
    fits = {"tuning": TUNING | {"warmup": [0.01, room - 1e-6]}, "budget": budget}
    assert parse_study(changed(**fits), "small.yaml").tuning is not None
    with pytest.raises(
        ValueError, match=rf"tuning\.warmup reaches .*, and from {room:g} on a warm-up does not end bef"
    ):
        parse_study(changed(**fits | {"tuning": TUNING | {"warmup": [0.01, room + 1e-6]}}), "small.yaml")


def test_strategies_are_added_once() -> None:
    study = parse_study(changed(), "small.yaml").at(strategies=["mine", "scratch"])
    assert [spec.name for spec in study.strategies] == ["scratch", "zero_pad", "zero_pad", "mine"]


def test_a_study_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_study(changed(), "small.yaml").seeds = 3


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"abuot": "x"}, "small.yaml: a study has no key 'abuot': did you mean about?"),
        ({"budget": {"tokns": 1}}, "small.yaml: budget has no key 'tokns': did you mean tokens?"),
        ({"train": {"learning_rat": 1}}, "small.yaml: train has no key 'learning_rat': did you mean learning_rate?"),
        ({"about": None}, "small.yaml: a study lacks the key 'about'"),
        ({"tasks": []}, "small.yaml: tasks: Tuple must have at least 1 item after validation, not 0"),
        (
            {"strategies": [{"name": "zero_pad", "tasks": []}]},
            "small.yaml: strategies.0.tasks: Tuple must have at least 1 item after validation, not 0",
        ),
        (
            {"strategies": [{"name": "zero_pad", "architectures": []}]},
            "small.yaml: strategies.0.architectures: Tuple must have at least 1 item after validation, not 0",
        ),
        (
            {"tuning": TUNING | {"learning_rate": [1e-300, 1e300]}},
            "small.yaml: tuning.learning_rate: give a narrower range: [1e-300, 1e+300] is wider than any number",
        ),
        (
            {"tasks": [3]},
            "small.yaml: tasks.0: write a name, or a mapping that has one: {name: NAME, parameter: value}",
        ),
        ({"tasks": [{"states": 8}]}, "small.yaml: tasks.0 lacks the key 'name'"),
        ({"tasks": ["pycode", "pycode"]}, "small.yaml: the task 'pycode' stands twice"),
        ({"seeds": 0}, "small.yaml: seeds: must be greater than or equal to 1, not 0"),
        ({"seeds": True}, "small.yaml: seeds: must be a valid integer, not True"),
        ({"parametrization": "mupp"}, "small.yaml: parametrization: unknown value 'mupp': did you mean mup?"),
        ({"train": {"optimizer": "adam"}}, "small.yaml: train.optimizer: unknown value 'adam': did you mean adamw?"),
        ({"train": {"learning_rate": -1}}, "small.yaml: train.learning_rate: must be greater than 0, not -1"),
        ({"train": {"clip": True}}, "small.yaml: train.clip: give a number, not true or false"),
        ({"train": {"eps": float("nan")}}, "small.yaml: train.eps: must be a finite number, not nan"),
        ({"train": {"betas": [0.9, 1.0]}}, "small.yaml: train.betas.1: must be less than 1, not 1.0"),
        ({"train": {"batch": 1000}}, "small.yaml: budget.tokens 4096 is less than one step of batch × context"),
        (
            {"ladders": {"transformer": [{"layers": {"a": 1}}, {}]}},
            "small.yaml: ladders.transformer.0.layers: give a number, a word, true or false, or a list of them",
        ),
        (
            {"ladders": {"transformer": [{"layers": 1}]}},
            "small.yaml: all ladders need the same number of rungs, these have: tokenformer 2, transformer 1",
        ),
        (
            {"budget": {"split": [0.2, 0.5]}},
            "small.yaml: budget.split has 2 fractions and the ladders 1 growth steps: give one for each",
        ),
        (
            {"budget": {"split": [0.5, 0.2]}},
            "small.yaml: budget: split must be fractions of the total in (0, 1), each larger than the one before",
        ),
        ({"budget": {"split": [1.0]}}, "small.yaml: budget.split.0: must be less than 1, not 1.0"),
        (
            {"budget": {"points": [0.6, 1.5]}},
            "small.yaml: budget: points must be fractions of the total in (0, 1], each larger than the one before",
        ),
        (
            {"budget": {"points": [0.75]}},
            "small.yaml: budget: points must end with 1.0: arms are compared at the full budget",
        ),
        (
            {"budget": {"points": [0.55, 1.0]}},
            "small.yaml: budget: the cooldown of the budget point 0.55 would begin at 0.495 of the tokens, before the "
            "last growth at 0.5; raise the point or grow earlier",
        ),
        (
            {"budget": {"warmup": 0.5}},
            "small.yaml: budget: warmup 0.5 does not end before the first growth or cooldown; shorten it",
        ),
        (
            {"strategies": [{"name": "scratch", "architectures": ["transfromer"]}]},
            "small.yaml: strategy 'scratch': no ladder is named 'transfromer': did you mean transformer?",
        ),
        (
            {"strategies": [{"name": "scratch", "tasks": ["pycoed"]}]},
            "small.yaml: strategy 'scratch': no task is named 'pycoed': did you mean pycode?",
        ),
        (
            {"ladders": {"a/b": [{"layers": 1}, {"layers": 2}]}},
            "small.yaml: an arm is named ARCHITECTURE/STRATEGY: call the ladder 'a/b' something without a /",
        ),
        *(
            (
                {"study": name},
                "small.yaml: study: it names the folder of results: give a name without / or \\ or a leading dot, "
                f"not {name!r}",
            )
            for name in ("../up", "/tmp/away", "a\\b", ".hidden", "..", " ")
        ),
        ({"study": ""}, "small.yaml: study: String must have at least 1 character, not ''"),
        (
            {"study": "a\x1b[31m"},
            "small.yaml: 'a\\x1b[31m' holds a line break or another control character: remove it",
        ),
        (
            {"strategies": [{"name": "scratch", "arm": "s\x00"}]},
            "small.yaml: 's\\x00' holds a line break or another control character: remove it",
        ),
        (
            {"schedules": {"x\x07": {}}},
            "small.yaml: 'x\\x07' holds a line break or another control character: remove it",
        ),
        (
            {"first_seed": 999_999},
            "small.yaml: seeds from 1,000,000 on are for tuning alone: lower first_seed or seeds",
        ),
        ({"first_seed": -1}, "small.yaml: first_seed: must be greater than or equal to 0, not -1"),
        (
            {"tuning": TUNING | {"trials": 1}},
            "small.yaml: tuning: trials must be 2 or more: one leaves nothing to choose from",
        ),
        (
            {"tuning": TUNING | {"learning_rate": [0.1, 0.001]}},
            "small.yaml: tuning.learning_rate: give a range as [low, high], low first, not [0.1, 0.001]",
        ),
        (
            {"tuning": TUNING | {"learning_rate": 0.1}},
            "small.yaml: tuning.learning_rate: give a range as [low, high], not 0.1",
        ),
        (
            {"tuning": TUNING | {"learning_rate": [0.0, 0.1]}},
            "small.yaml: tuning.learning_rate.low: must be greater than 0, not 0.0",
        ),
        (
            {"tuning": TUNING | {"warmup": [0.1, 1.0]}},
            "small.yaml: tuning: warmup is a fraction of the budget: its range must end below 1, not 1",
        ),
        (
            {"tuning": TUNING | {"tokens": 100}},
            "small.yaml: tuning.tokens 100 cannot be met in steps of 32 (batch × context): give 96 or 128",
        ),
        (
            {"tuning": TUNING | {"tokens": 20}},
            "small.yaml: tuning.tokens 20 cannot be met in steps of 32 (batch × context): give 32",
        ),
        ({"tuning": TUNING | {"trails": 4}}, "small.yaml: tuning has no key 'trails': did you mean trials?"),
        ({"tuning": {"trials": 4, "tokens": 2048}}, "small.yaml: tuning lacks the key 'learning_rate'"),
        (
            {"tuning": TUNING | {"warmup": [0.1, 0.3]}, "schedules": {"late": {"split": [0.8]}}},
            "small.yaml: tuning.warmup reaches 0.3 of the budget, and from 0.1 on a warm-up does not end before the "
            "next growth or cooldown: lower the end of its range",
        ),
        (
            {"strategies": ["scratch", "scratch"]},
            "small.yaml: the arm 'scratch' stands twice on tokenformer: give one of them an `arm` label or remove it",
        ),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="small") as caught:
        parse_study(changed(**parts), "small.yaml")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tasks: [a\nseeds: 3\n", "mine.yaml is not YAML: line 2: expected ',' or ']', but got ':'"),
        (
            "study: a\nseeds: 3\nbudget: {tokens: 1}\nseeds: 5\n",
            "mine.yaml is not YAML: line 4: the key 'seeds' stands twice, first in line 2",
        ),
        (
            "study: a\nbudget:\n  tokens: 1\n  'tokens': 2\n",
            "mine.yaml is not YAML: line 4: the key 'tokens' stands twice, first in line 3",
        ),
        ("- a\n", "mine.yaml is not a study: a study file is a mapping that begins with `study: NAME`"),
        ("", "mine.yaml is not a study: a study file is a mapping that begins with `study: NAME`"),
    ],
)
def test_a_file_that_is_no_study_is_said_so(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"mine\.yaml") as caught:
        parse_study(text, "mine.yaml")
    assert str(caught.value) == sentence


def test_one_arm_on_two_tasks_is_not_twice() -> None:
    strategies = [{"name": "scratch", "tasks": [task]} for task in ("pycode", "grammar(states=8)")]
    study = parse_study(changed(strategies=strategies), "small.yaml")
    assert [[spec.runs("transformer", task.label) for task in study.tasks] for spec in study.strategies] == [
        [True, False, False],
        [False, False, True],
    ]
    assert parse_study(study.to_yaml(), "small.yaml") == study
    with pytest.raises(ValueError, match="the arm 'scratch' stands twice on tokenformer"):
        parse_study(changed(strategies=[*strategies, {"name": "scratch", "tasks": ["pycode"]}]), "small.yaml")


def test_one_arm_on_two_architectures_is_not_twice() -> None:
    strategies = [{"name": "scratch", "architectures": [name]} for name in ("transformer", "tokenformer")]
    assert len(parse_study(changed(strategies=strategies), "small.yaml").strategies) == 2


def test_a_study_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(changed())
    assert read_study(path) == read_study(str(path))
    with pytest.raises(ValueError, match=r"unknown study 'qiuck': did you mean quick\? \(or give the path"):
        read_study("qiuck")
    with pytest.raises(ValueError, match=r"there is no study file .*yours\.yaml"):
        read_study(tmp_path / "yours.yaml")
    path.write_bytes(b"study: caf\xe9\n")
    with pytest.raises(ValueError, match=r"mine\.yaml is not a study: byte 10 is not UTF-8 text$"):
        read_study(path)


def test_a_mapping_merged_into_two_is_not_a_key_twice() -> None:
    text = changed().replace("budget:\n", "budget:\n  <<: &b {cooldown: 0.2, tokens: 1}\n")
    text += "schedules: {late: {<<: {split: [0.6]}, split: [0.7]}}\n"
    study = parse_study(text, "small.yaml")
    assert (study.budget.cooldown, study.budget.tokens, study.schedules["late"].split) == (0.2, 4096, (0.7,))


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_names_what_exists(name: str) -> None:
    study: Study = read_study(name)
    assert study.study == name
    assert study.about.endswith(".")
    for spec in study.strategies:
        plugins.check(plugins.find("strategy", spec.name), spec.parameters)
    for task in study.tasks:
        plugins.check(plugins.find("task", task.name), task.parameters)


def test_the_shipped_studies_are_those_promised() -> None:
    assert {"quick", "standard", "ladder"} <= set(shipped())
    assert {len(ladder) for ladder in read_study("ladder").ladders.values()} == {3}
    assert read_study("standard").seeds >= 5
