"""The study file: what is compared, at which sizes, for how many tokens. Frozen, strict, and wrong in one sentence.

A study is the product tasks × architectures × strategies × seeds under one budget. It names plugins and shapes and
knows neither: plan.py resolves them.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_serializer,
    model_validator,
)

from growbench.plugins import nearest


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")
    return value


def _plain(value: object) -> object:
    items = value if isinstance(value, list) else [value]
    if not all(item is None or isinstance(item, bool | int | float | str) for item in items):
        raise ValueError("give a number, a word, true or false, or a list of them")
    return value


Count = Annotated[int, Field(ge=1, strict=True)]
Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, lt=1)]
Count0 = Annotated[int, Field(ge=0, strict=True)]
Part = Literal["attention", "ffn", "residual", "heads", "tokens"]
Value = Annotated[bool | int | float | str | list[int] | list[float] | list[str] | None, BeforeValidator(_plain)]
Optimizer = Literal["adamw", "sgd"]
Precision = Literal["64-true", "32-true", "bf16-mixed"]


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _numbers(value: object) -> object:
    """Read "2-4, 7" as 2, 3, 4, 7."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str):
        return value
    if not re.fullmatch(r"\s*\d+(\s*-\s*\d+)?(\s*,\s*\d+(\s*-\s*\d+)?)*\s*", value):
        raise ValueError(f"give numbers and ranges, counted from 0, as in 2-4 or 0, 3; not {value!r}")
    ends = [[int(end) for end in word.split("-")] for word in value.split(",")]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


def _folder_name(name: str) -> str:
    if not name.strip() or name.startswith(".") or re.search(r"[/\\]", name):
        raise ValueError(f"it names the folder of results: give a name without / or \\ or a leading dot, not {name!r}")
    return name


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_min_length=1)


class TaskSpec(_Part):
    """A task: `name`, `name:ARGUMENT`, or a mapping of its name and parameters."""

    name: str
    argument: str | None = None
    parameters: dict[str, Value] = {}

    @model_validator(mode="before")
    @classmethod
    def _written(cls, written: object) -> object:
        if isinstance(written, str):
            name, _, argument = written.partition(":")
            return {"name": name, "argument": argument or None}
        return _gather(written, {"name", "argument"})

    @model_serializer
    def _flat(self) -> dict[str, Value]:
        return _given(name=self.name, argument=self.argument) | self.parameters

    @property
    def label(self) -> str:
        """The task as a report names it: text:plays.txt, grammar(states=8)."""
        return (f"{self.name}:{self.argument}" if self.argument else self.name) + _listed(self.parameters)


class StrategySpec(_Part):
    """A strategy: `name`, or a mapping of its name and parameters, an `arm` label and restrictions if wanted.

    architectures, tasks: where it runs, a task by its label; only: the parts that it may grow (shape.PARTS); layers: in
    which layers ("2-4, 7"). Restricted growth adds as many weights as the ladder does, in fewer places.
    """

    name: str
    arm: str | None = None
    architectures: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    only: Annotated[tuple[Part, ...], BeforeValidator(_several), Field(min_length=1)] | None = None
    layers: Annotated[tuple[Count0, ...], BeforeValidator(_numbers), Field(min_length=1)] | None = None
    parameters: dict[str, Value] = {}

    @model_validator(mode="before")
    @classmethod
    def _written(cls, written: object) -> object:
        return (
            {"name": written} if isinstance(written, str) else _gather(written, set(cls.model_fields) - {"parameters"})
        )

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        lists = {
            key: list(value) for key in ("architectures", "tasks", "only", "layers") if (value := getattr(self, key))
        }
        return _given(name=self.name, arm=self.arm) | lists | self.parameters

    @property
    def label(self) -> str:
        """The arm's name: its label, or the strategy with its parameters, zero_pad(scaled=false)."""
        return self.arm or self.name + _listed(self.parameters) + self.restriction

    def runs(self, architecture: str, task: str) -> bool:
        """Whether it runs on an architecture and a task, both by name."""
        return architecture in (self.architectures or [architecture]) and task in (self.tasks or [task])

    @property
    def words(self) -> str:
        """The strategy and how it is labelled, for a sentence about two that clash."""
        return f"{self.name} (arm: {self.arm})" if self.arm else self.label

    @property
    def restriction(self) -> str:
        """The restriction in words, "" without one: [ffn], [attention, layers 2 3]."""
        words = [*(self.only or ()), *(["layers " + " ".join(map(str, self.layers))] if self.layers else ())]
        return f"[{', '.join(words)}]" if words else ""


class Launch(_Part):
    """Who runs the stages: a launcher's `name`, or a mapping of its name and options. It changes no number."""

    name: str
    parameters: dict[str, JsonValue] = {}

    @model_validator(mode="before")
    @classmethod
    def _written(cls, written: object) -> object:
        return {"name": written} if isinstance(written, str) else _gather(written, {"name"})

    @model_serializer
    def _flat(self) -> dict[str, JsonValue]:
        return {"name": self.name} | self.parameters


class Schedule(_Part):
    """When and how arms grow, where it differs from the study's own: `schedules` makes a grid of it and the strategies.

    rungs: those of the ladder that are visited, the last one included; split, source, moments, rewarm: as in budget and
    train.
    """

    rungs: tuple[Count0, ...] | None = None
    split: tuple[Fraction, ...] | None = None
    source: Literal["stable", "decayed"] | None = None
    moments: Literal["carried", "reset"] | None = None
    rewarm: Fraction | None = None


class Budget(_Part):
    """Tokens of one arm along its whole path: it grows at `split` and is scored, decayed, at `points`.

    source: the model that grows, at constant rate or decayed; rewarm: the rate rises anew after growth, for that
    fraction of the total.
    """

    tokens: Count
    split: tuple[Fraction, ...]
    points: tuple[Positive, ...] = (1.0,)
    cooldown: Annotated[Fraction, Field(gt=0)] = 0.1
    warmup: Fraction = 0.02
    source: Literal["stable", "decayed"] = "stable"
    rewarm: Fraction = 0.0

    @property
    def room(self) -> float:
        """How long a warm-up can be that starts from scratch or at any growth, as a fraction of the tokens."""
        ends = [share * (1 - self.cooldown) for share in (*self.split[1:], self.points[0])]
        after = (end - start for start, end in zip(self.split, ends, strict=False))
        return min((*self.split[:1], ends[-1], *after))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, fractions, range_ in (("split", self.split, "(0, 1)"), ("points", self.points, "(0, 1]")):
            if not _rising((0.0, *fractions)):
                raise ValueError(f"{name} must be fractions of the total in {range_}, each larger than the one before")
        if not self.points or self.points[-1] != 1:
            raise ValueError("points must end with 1.0: arms are compared at the full budget")
        first = self.points[0] * (1 - self.cooldown)
        if self.split and first <= self.split[-1]:
            raise ValueError(
                f"the cooldown of the budget point {self.points[0]} would begin at {first:.3g} of the tokens, before "
                f"the last growth at {self.split[-1]}; raise the point or grow earlier"
            )
        if self.warmup >= min((*self.split, first)):
            raise ValueError(f"warmup {self.warmup} does not end before the first growth or cooldown; shorten it")
        return self


class Train(_Part):
    """The loop, one for all arms: learning rate and eps at the base shape, batch in sequences, eval_* in tokens."""

    context: Count
    batch: Count
    learning_rate: Positive
    weight_decay: NotNegative = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: Positive = 1e-8
    clip: Positive | None = 1.0
    optimizer: Optimizer = "adamw"
    moments: Literal["carried", "reset"] = "carried"
    precision: Precision = "32-true"
    eval_every: Count
    eval_tokens: Count


def _whole(value: object) -> object:
    if value == "fsdp":
        raise ValueError(
            "fsdp splits every weight over the devices, and growth and frozen parts need it whole: use ddp"
        )
    return value


class Device(_Part):
    """What a stage trains on: a process for each of its `devices`, with the whole model and its share of every batch.

    compile: by torch.compile; deterministic: the same bits again on the same machine, at some cost in speed. How many
    devices there are changes numbers by rounding alone, as threads do: stages of another number are not run again.
    """

    accelerator: Literal["cpu", "cuda"] = "cpu"
    devices: Count = 1
    strategy: Annotated[Literal["ddp"], BeforeValidator(_whole)] = "ddp"
    compile: Annotated[bool, Field(strict=True)] = False
    deterministic: Annotated[bool, Field(strict=True)] = False

    @property
    def words(self) -> str:
        """What a stage trains on: cpu, 4 x cuda."""
        return f"{self.devices} x {self.accelerator}" if self.devices > 1 else self.accelerator


class Range(_Part):
    """A range that tuning draws from, uniform in the logarithm."""

    low: Positive
    high: Positive

    @model_validator(mode="before")
    @classmethod
    def _written(cls, written: object) -> object:
        if isinstance(written, list | tuple) and len(written) == 2:
            return {"low": written[0], "high": written[1]}
        if not isinstance(written, Mapping):
            raise ValueError(f"give a range as [low, high], not {written!r}")
        return written

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"give a range as [low, high], low first, not [{self.low:g}, {self.high:g}]")
        if math.isinf(self.high / self.low):
            raise ValueError(f"give a narrower range: [{self.low:g}, {self.high:g}] is wider than any number")
        return self

    @model_serializer
    def _flat(self) -> list[float]:
        return [self.low, self.high]


class Tuning(_Part):
    """Trials before a study: equally many for every arm of every task, from one space, on seeds that no result uses.

    A trial is an arm trained to a proxy budget of `tokens`, grown at the study's own fractions. The space: the learning
    rate at the base shape and, where given, weight decay and warm-up (a fraction of the budget, from scratch or after
    growth).
    """

    trials: Count
    seeds: Count = 1
    tokens: Count
    learning_rate: Range
    weight_decay: Range | None = None
    warmup: Range | None = None

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.trials < 2:
            raise ValueError("trials must be 2 or more: one leaves nothing to choose from")
        if self.warmup and self.warmup.high >= 1:
            raise ValueError(
                f"warmup is a fraction of the budget: its range must end below 1, not {self.warmup.high:g}"
            )
        return self


TUNING_SEED = 1_000_000
"""The first seed that tuning draws from; results draw from lower ones."""


class Study(_Part):
    """A study file. `ladders` gives each architecture its rungs, smallest first; a rung is the fields of a Shape.

    first_seed: results use this seed and the `seeds` - 1 after it; more seeds after a look at the results are fresh
    ones. tuning: how every arm's learning rate is chosen; without it the study is untuned.
    """

    study: Annotated[str, AfterValidator(_folder_name)]
    about: str
    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1)]
    seeds: Count
    first_seed: Count0 = 0
    parametrization: Literal["mup", "standard"] = "mup"
    ladders: Annotated[dict[str, Annotated[tuple[dict[str, Value], ...], Field(min_length=1)]], Field(min_length=1)]
    strategies: Annotated[tuple[StrategySpec, ...], Field(min_length=1)]
    budget: Budget
    train: Train
    device: Device = Device()
    schedules: dict[str, Schedule] = {}
    tuning: Tuning | None = None
    launch: Launch | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rungs = {name: len(ladder) for name, ladder in self.ladders.items()}
        for name in rungs:
            if not name.strip() or "/" in name:
                raise ValueError(
                    f"an arm is named ARCHITECTURE/STRATEGY: call the ladder {name!r} something without a /"
                )
        if len(set(rungs.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in rungs.items())
            raise ValueError(f"all ladders need the same number of rungs, these have: {counts}")
        growths = next(iter(rungs.values())) - 1
        if len(self.budget.split) != growths:
            raise ValueError(
                f"budget.split has {len(self.budget.split)} fractions and the ladders {growths} growth steps: "
                "give one for each"
            )
        for name, schedule in self.schedules.items():
            try:
                self.scheduled(schedule, growths + 1)
            except (ValidationError, ValueError) as error:
                said = _sentence(error) if isinstance(error, ValidationError) else error
                raise ValueError(f"schedule {name!r}: {said}") from None
        tasks = [task.label for task in self.tasks]
        for spec in self.strategies:
            for name in spec.architectures or ():
                if name not in rungs:
                    raise ValueError(f"strategy {spec.label!r}: no ladder is named {name!r}{nearest(name, rungs)}")
            for name in spec.tasks or ():
                if name not in tasks:
                    raise ValueError(f"strategy {spec.label!r}: no task is named {name!r}{nearest(name, tasks)}")
        for name, task in product(rungs, tasks):
            arms = [spec.label for spec in self.strategies if spec.runs(name, task)]
            _unique(f"the arm {{}} stands twice on {name}: give one of them an `arm` label or remove it", arms)
        _unique("the task {} stands twice", tasks)
        if self.train.batch % self.device.devices:
            raise ValueError(
                f"device.devices: a batch of {self.train.batch} sequences cannot be shared equally by "
                f"{self.device.devices}: give a number that divides it"
            )
        if self.train.batch * self.train.context > self.budget.tokens:
            raise ValueError(f"budget.tokens {self.budget.tokens} is less than one step of batch × context")
        if self.first_seed + self.seeds > TUNING_SEED:
            raise ValueError(f"seeds from {TUNING_SEED:,} on are for tuning alone: lower first_seed or seeds")
        if self.tuning:
            self._tunable(self.tuning, growths + 1)
        return self

    def _tunable(self, tuning: Tuning, rungs: int) -> None:
        """Raise ValueError for trials that cannot end at their budget, or whose warm-up would not end in time."""
        step = self.train.batch * self.train.context
        if tuning.tokens % step:
            below = tuning.tokens // step * step
            raise ValueError(
                f"tuning.tokens {tuning.tokens:,} cannot be met in steps of {step:,} (batch × context): "
                f"give {f'{below:,} or ' * (below > 0)}{below + step:,}"
            )
        for schedule in (Schedule(), *self.schedules.values()):
            room = self.scheduled(schedule, rungs).room
            if tuning.warmup and tuning.warmup.high >= room:
                raise ValueError(
                    f"tuning.warmup reaches {tuning.warmup.high:g} of the budget, and from {room:.3g} on a warm-up "
                    "does not end before the next growth or cooldown: lower the end of its range"
                )

    @property
    def seed_numbers(self) -> range:
        """The seeds of the results."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def scheduled(self, schedule: Schedule, rungs: int) -> Budget:
        """Return the budget of a schedule on a ladder of so many rungs; ValueError where the two do not fit."""
        visited = schedule.rungs or tuple(range(rungs))
        if list(visited) != sorted(set(visited)) or visited[-1] != rungs - 1:
            raise ValueError(f"rungs must rise and end with the last, {rungs - 1}")
        chosen = {k: v for k, v in schedule.model_dump(include={"split", "source", "rewarm"}).items() if v is not None}
        budget = Budget.model_validate(self.budget.model_dump() | chosen)
        if len(budget.split) != len(visited) - 1:
            raise ValueError(
                f"split has {len(budget.split)} fractions and {len(visited)} rungs are visited: give one per growth"
            )
        return budget

    def at(
        self,
        *,
        seeds: int | None = None,
        first_seed: int | None = None,
        strategies: Sequence[str] = (),
        untuned: bool = False,
        precision: str | None = None,
        device: Mapping[str, object] | None = None,
    ) -> "Study":
        """Return the study with other seeds or precision (None keeps them), those strategies that it does not name,
        other fields of `device`, or untuned.
        """
        named = {spec.name for spec in self.strategies}
        written = self.model_dump()
        added = [{"name": name} for name in strategies if name not in named]
        changes = {
            "seeds": self.seeds if seeds is None else seeds,
            "first_seed": self.first_seed if first_seed is None else first_seed,
            "strategies": [*written["strategies"], *added],
            "train": written["train"] | ({"precision": precision} if precision else {}),
            "device": written["device"] | dict(device or {}),
            "tuning": None if untuned else written["tuning"],
        }
        return _validated(written | changes, self.study)

    def proxy(self) -> "Study":
        """Return the study that tuning trains: the proxy budget, scored at its end, on the seeds of tuning."""
        assert self.tuning is not None
        budget = self.budget.model_dump() | {"tokens": self.tuning.tokens, "points": (1.0,)}
        written = self.model_dump() | {"tuning": None, "seeds": self.tuning.seeds, "first_seed": 0, "budget": budget}
        return _validated(written, f"{self.study} (tuning)").model_copy(update={"first_seed": TUNING_SEED})

    def to_yaml(self) -> str:
        """Return the study as the text of a study file, every default written out."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=120)


def shipped() -> list[str]:
    """Return the names of the studies that come with growbench."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml"))


def read_study(name_or_path: str | Path) -> Study:
    """Return a shipped study by name, or the one in a file; ValueError, one sentence, for what is wrong with it."""
    name = str(name_or_path)
    if name in shipped():
        return parse_study(_folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name)
    path = Path(name_or_path)
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not a study: byte {error.start} is not UTF-8 text") from None
        return parse_study(text, name)
    if path.suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no study file {name}")
    raise ValueError(f"unknown study {name!r}{nearest(name, shipped())} (or give the path of a study file)")


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if first := lines.get((key.tag, key.value)):
                    said = f"the key {key.value!r} stands twice, first in line {first}"
                    raise yaml.MarkedYAMLError(problem=said, problem_mark=key.start_mark)
                lines[key.tag, key.value] = line
        return node


def parse_study(text: str, origin: str) -> Study:
    """Return the study that a text describes; `origin` is what the error sentence calls it."""
    try:
        written = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{origin} is not YAML: {where}{getattr(error, 'problem', error)}") from None
    if not isinstance(written, dict):
        raise ValueError(f"{origin} is not a study: a study file is a mapping that begins with `study: NAME`")
    return _validated(written, origin)


def parse_launch(written: object, origin: str) -> Launch | None:
    """Return a `launch` block that is written elsewhere than in a study; None for none."""
    try:
        return None if written is None else Launch.model_validate(written)
    except ValidationError as error:
        raise ValueError(f"{origin}: launch: {_sentence(error)}") from None


# --- errors ----------------------------------------------------------------------------------------------------------


def _validated(written: Mapping[Any, object], origin: str) -> Study:
    try:
        study = Study.model_validate(written)
    except ValidationError as error:
        raise ValueError(f"{origin}: {_sentence(error)}") from None
    for text in _texts(study.model_dump(exclude={"about"})):
        if any(unicodedata.category(character) == "Cc" for character in text):
            raise ValueError(f"{origin}: {text!r} holds a line break or another control character: remove it")
    return study


def _texts(written: object) -> Iterator[str]:
    """Yield every key and value that is text."""
    if isinstance(written, Mapping):
        written = [*written, *written.values()]
    if isinstance(written, list | tuple):
        for item in written:
            yield from _texts(item)
    elif isinstance(written, str):
        yield written


def _sentence(error: ValidationError) -> str:
    """Say what is wrong first: an unknown key explains a missing one, so it goes before the others."""
    found = sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    kind, place, value = found[0]["type"], found[0]["loc"], found[0].get("input")
    *parents, last = place or ("",)
    where = ".".join(str(part) for part in parents) or "a study"
    if kind == "extra_forbidden":
        return f"{where} has no key {last!r}{nearest(str(last), _keys(parents))}"
    if kind == "missing":
        return f"{where} lacks the key {last!r}"
    here = f"{'.'.join(str(part) for part in place)}: " if place else ""
    if kind == "value_error":
        return here + str(found[0]["msg"]).removeprefix("Value error, ")
    if kind == "literal_error":
        choices = str(found[0]["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        return f"{here}unknown value {value!r}{nearest(str(value), choices)}"
    shown = "" if isinstance(value, Mapping | list | tuple) else f", not {value!r}"
    return here + found[0]["msg"].removeprefix("Input ").replace("should", "must", 1) + shown


def _keys(parents: Sequence[object]) -> list[str]:
    """Return the keys of the part of a study that a location leads to."""
    model: Any = Study
    for part in parents:
        if isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            choices = [annotation, *get_args(annotation)]
            model = next((a for a in choices if isinstance(a, type) and issubclass(a, BaseModel)), model)
    return list(model.model_fields)


def _gather(written: object, own: set[str]) -> object:
    """Move every key that is not the spec's own into its parameters."""
    if not isinstance(written, Mapping):
        raise ValueError("write a name, or a mapping that has one: {name: NAME, parameter: value}")
    parameters = {key: value for key, value in written.items() if key not in own}
    return {key: value for key, value in written.items() if key in own} | {"parameters": parameters}


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _listed(parameters: Mapping[str, object]) -> str:
    written = (f"{k}={str(v).lower() if isinstance(v, bool) or v is None else v}" for k, v in parameters.items())
    return f"({', '.join(written)})" if parameters else ""


def _rising(values: Sequence[float]) -> bool:
    return all(a < b <= 1 and math.isfinite(b) for a, b in pairwise(values))


def _unique(sentence: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(sentence.format(repr(name)))


def _folder() -> Any:
    return files("growbench") / "studies"
