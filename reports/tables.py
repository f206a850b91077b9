"""The tables: records in, headings and cells out, each cell with the exact value behind its text.

One idea: a table is a list of columns, and a column is a heading with a function from a record to a cell.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from growbench.reports import drawing, summary, words
from growbench.reports.contrasts import Tested, of_table
from growbench.results import CURVES, DIAGNOSTICS, RESULTS, STAGES, Column

Record = Mapping[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is shown, and the exact value behind it (to sort and to check), None where there is none."""

    text: str
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class Head:
    """A column's heading; of: the ways of stating a loss that show it (own, token, scratch), or seeds."""

    text: str
    unit: str = ""
    number: bool = False
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cells, the first of which heads the row; kind is a CSS class."""

    cells: Sequence[Cell]
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with an id, a name for assistive technology, a caption, and a heading per column.

    task, size: what it is of, where a reader may choose that.
    """

    name: str
    title: str
    caption: str
    heads: Sequence[Head]
    rows: Sequence[Row]
    empty: str = "Nothing to list."
    sortable: bool = False
    task: str = ""
    size: str = ""


Spec = tuple[Head, Callable[[Record], Cell]]


MOST = 150
"""The longest table of arms: what a page can hold for every task, and an eye for one."""


def make(
    records: Iterable[Record],
    specs: Sequence[Spec],
    kind: Callable[[Record], str],
    *,
    caption: str,
    most: int = MOST,
    **fields: Any,
) -> Table:
    """A table: a row per record, a cell per column, of the first `most`, as the caption then says.

    fields: those of `Table`; kind: a row's CSS class.
    """
    records = list(records)
    if len(records) > most:
        caption += f" The first {most:,} of {len(records):,} rows are shown; the tables beside this page hold all."
    records = records[:most]
    rows = [Row(cells=[cell(record) for _, cell in specs], kind=kind(record)) for record in records]
    return Table(heads=[head for head, _ in specs], rows=rows, caption=caption, **fields)


def _plainly(record: Record) -> str:
    return ""


def formatted(form: Callable[[Any], str], value: Any) -> Cell:
    """A value as `form` writes it, a dash where it is missing."""
    if words.missing(value):
        return Cell(text=words.DASH)
    return Cell(text=form(value), value=repr(float(value)) if isinstance(value, float) else value)


def _number(text: str, name: str, form: Callable[[Any], str], unit: str = "", of: str = "") -> Spec:
    return Head(text=text, unit=unit, number=True, of=of), lambda record: formatted(form, record[name])


def _text(text: str, name: str) -> Spec:
    return Head(text=text), lambda record: formatted(str, record[name])


def _arm(record: Record) -> Cell:
    """The arm's name, which may break after its signs, titled with how to run it; a badge on sterile controls."""
    badge = Markup('<span class="badge">sterile control</span>') if record["sterile"] else Markup("")
    name = Markup('<span title="{}">{}</span>').format(
        words.command(record["study"], record["arm"]), breaking(str(record["arm"]))
    )
    return Cell(text=name + badge, value=record["arm"])


def breaking(arm: str) -> Markup:
    """A name that may break after its signs."""
    return Markup("<wbr>").join(re.split(r"(?<=[/\[,_=])", arm))


def _by_seed(record: Record) -> Cell:
    one = Markup('<span class="sub" data-seed="{}" data-score="{}">{}: {}</span>')
    scores = zip(record["seeds"], record["scores"], strict=True)
    listed = Markup(" ").join(one.format(seed, repr(value), seed, words.loss(value)) for seed, value in scores)
    return Cell(text=Markup('<span class="seeds">{}</span>').format(listed))


def _shape(record: Record) -> Cell:
    """The final sizes by their initials, and the reference where that is not the ladder's scratch of the same shape."""
    text, whole, reference = words.shape(record["shape"]), record["shape"], record["reference"]
    shown = Markup('<span title="{}">{}</span>').format(whole, text) if whole else Markup(words.DASH)
    if reference != record["arm"] and (record["own_shape"] or record["other_shape"]):
        other = ", another shape" if record["other_shape"] else ""
        shown += Markup('<span class="sub why">beside {}{}</span>').format(breaking(str(reference)), other)
    return Cell(text=shown, value=whole)


ARM: Spec = (Head(text="arm"), _arm)
SHAPE: Spec = (Head(text="final shape"), _shape)
INITIALS = "Shapes: layers L, residual R, heads H, key K, value V, ffn F, tokens T; 2×64 is 64 in each of two layers."
STATUS: Spec = _text("status", "status")
SIZE: tuple[Spec, ...] = (
    _number("tokens", "tokens", words.count),
    _number("tokens per weight", "tokens_per_param", words.significant),
)


def under(shown: Cell, below: str) -> Cell:
    """A cell with a smaller line below its number, or the reason why it has none."""
    kind = "sub" if shown.value is not None else "sub why"
    return Cell(text=Markup('{}<span class="{}">{}</span>').format(shown.text, kind, below), value=shown.value)


def _losses(metric: summary.Metric, records: Sequence[Record]) -> list[Spec]:
    """The loss in a task's own metric, above its limit where that is known, and by seed."""
    own = "own" if metric.scale != 1 else "own token"
    specs = [_number("loss, mean", "score", words.loss, metric.unit, own)]
    if any(record["excess_loss"] is not None for record in records):
        specs.append(
            _number("excess over the limit", "excess_loss", words.loss, RESULTS["excess_loss"].unit, "own token")
        )
    if any(record["bits_per_weight"] is not None for record in records):
        specs.append(_number("facts known per weight", "bits_per_weight", words.significant, "bits"))
    return [*specs, (Head(text="loss by seed", unit=metric.unit, of=f"{own} seeds"), _by_seed)]


def _per_token(metric: summary.Metric) -> list[Spec]:
    """The loss once more per token, where that is another number."""
    return [] if metric.scale == 1 else [_number("loss per token", "loss", words.loss, RESULTS["loss"].unit, "token")]


def _beside(metric: summary.Metric, tests: Tested) -> list[Spec]:
    """Mean paired differences to scratch: at equal tokens with the ratio, at equal FLOPs or why there is none."""

    def tokens(record: Record) -> Cell:
        shown = formatted(words.signed, record["difference"])
        return under(shown, record["refused"] if shown.value is None else words.ratio(record["ratio"], 4))

    def flops(record: Record) -> Cell:
        shown, own = formatted(words.signed, record["difference_flops"]), tests.arms.get(record["arm"])
        if shown.value is None:
            return under(shown, record["note"])
        return under(shown, words.interval(own["low_flops"], own["high_flops"])) if own else shown

    own = "own" if metric.scale != 1 else "own token"
    return [
        (Head(text="minus scratch, equal tokens", unit=metric.unit, number=True, of=own), tokens),
        (Head(text="minus scratch, equal FLOPs", unit=metric.unit, number=True, of=own), flops),
    ]


def _tests(tests: Tested) -> list[Spec]:
    """Each arm against its reference: the log ratio in percent, p, what could be seen, and the arms it is tied with."""
    own = tests.arms

    def spec(head: Head, form: Callable[[Any], str], name: str, below: Callable[[Record], str]) -> Spec:
        def shown(record: Record) -> Cell:
            row = own.get(record["arm"])
            return Cell(text=words.DASH) if row is None else under(formatted(form, row[name]), below(row))

        return head, shown

    def p(row: Record) -> str:
        single = "" if words.missing(row["p"]) else f"unadjusted {words.p(row['p'])}"
        signs = "" if words.missing(row["p_sign"]) else f"sign flips {words.p(row['p_sign'])}"
        return "; ".join(filter(None, (single, signs)))

    effect = Head(text="against scratch, 95 %", unit="% of the loss", number=True, of="scratch")
    seen = Head(text="detectable", unit="80 % power; r within seeds", number=True)
    specs = [
        spec(effect, words.change, "effect", lambda row: words.interval(row["low"], row["high"]) or row["why"]),
        spec(Head(text="p, Holm", number=True), words.p, "p_holm", p),
        spec(
            seen,
            lambda value: words.change(value).lstrip("+"),
            "detectable",
            lambda row: "" if words.missing(row["correlation"]) else f"r {words.fixed(row['correlation'], 2)}",
        ),
        (Head(text="tied"), lambda record: Cell(text=tests.letters.get(record["arm"], words.DASH))),
    ]
    return specs if own or tests.letters else []


Reference = Callable[[Record], Record | None]


def _costs(reference: Reference) -> list[Spec]:
    """The three views of cost, each with its ratio to that of a scratch record."""

    def spec(view: str, column: str) -> Spec:
        def cell(record: Record) -> Cell:
            shown, scratch = formatted(words.flops, record[column]), reference(record)
            if shown.value is None or scratch is None or not scratch[column]:
                return shown
            return under(shown, f"{words.ratio(record[column] / scratch[column])} scratch")

        return Head(text=f"cost, {view}", number=True), cell

    return [spec(view, column) for view, (column, _) in summary.VIEWS.items()]


def _own(rows: pd.DataFrame) -> Reference:
    """Finds the scratch record that a record is compared with."""
    records = {r["arm"]: r for r in summary.by_arm(summary.references(rows))}
    return lambda record: records.get(record["reference"])


def _headline(rows: pd.DataFrame) -> Reference:
    """Finds the scratch record of a record's architecture."""
    records = {r["architecture"]: r for r in summary.by_arm(summary.baseline(rows))}
    return lambda record: records.get(record["architecture"])


def _same_size(rows: pd.DataFrame, metric: summary.Metric, tests: Tested, **fields: Any) -> Table:
    """Arms of one size beside from-scratch rows of that size, with their tests where there are any."""
    records = summary.by_arm(rows)

    def kind(record: Record) -> str:
        return "bad" if record["unscored"] else "reference" if record["arm"] == record["reference"] else ""

    specs = [
        ARM,
        SHAPE,
        *_losses(metric, records),
        *_beside(metric, tests),
        *_tests(tests),
        *_per_token(metric),
        *_costs(_own(rows)),
        _number("weights", "params_non_embedding", words.count, "non-embedding"),
        *SIZE,
        STATUS,
    ]
    return make(records, specs, kind, sortable=True, **fields)


def matched(rows: pd.DataFrame, compared: pd.DataFrame, task: str, tests: Tested) -> Table:
    """Every ranked arm of a task at the full budget, architectures together, lowest mean loss first.

    compared: rows of `summary.beside_scratch`, ranked, at the full budget.
    """
    return _same_size(
        compared[compared["task"] == task],
        summary.metric(rows[rows["task"] == task]),
        tests,
        name=f"matched-{drawing.slug(task)}",
        title=f"Arms at matched size, {task}",
        task=task,
        size="matched",
        caption=f"Arms at matched size on {task}, at the full budget of {words.count(summary.full_budget(rows))} "
        f"tokens, lowest mean loss first. {INITIALS}",
    )


PLACEMENTS = {"ffn": "in feed-forwards", "everywhere": "everywhere"}


def grid(compared: pd.DataFrame, task: str, tests: Mapping[str, Tested]) -> Table | None:
    """From scratch at the target size, a row per nonlinearity, a column per placement; None without two of them.

    compared: rows of `summary.beside_scratch`, ranked, at the full budget; tests: by task, with the arms' letters.
    """
    mine = summary.baseline(compared[compared["task"] == task]).dropna(subset=["nonlinearity", "placement"])
    found = sorted(summary.by_arm(mine), key=lambda record: bool(record["architecture"] == "transformer"))
    records = {(record["nonlinearity"], record["placement"]): record for record in found}
    base = found[-1] if found and found[-1]["architecture"] == "transformer" else None
    if len(records) < 2:
        return None
    metric, letters = summary.metric(mine), tests[task].letters

    def spec(placement: str) -> Spec:
        def cell(row: Record) -> Cell:
            record = records.get((row["nonlinearity"], placement))
            if record is None:
                return Cell(text=words.DASH)
            apart = "" if base is None else words.signed(record["score"] - base["score"])
            tied = f"; {letters[record['arm']]}" if record["arm"] in letters else ""
            return under(formatted(words.loss, record["score"]), f"{apart}{tied} ({record['architecture']})")

        return Head(text=PLACEMENTS.get(placement, placement), unit=metric.unit, number=True), cell

    return make(
        [{"nonlinearity": name} for name in summary.unique(key[0] for key in records)],
        [_text("nonlinearity", "nonlinearity"), *(spec(p) for p in summary.unique(key[1] for key in records))],
        _plainly,
        name=f"grid-{drawing.slug(task)}",
        title=f"Nonlinearity and placement, {task}",
        caption=f"From scratch at the target size on {task}: mean loss, beneath it the difference to the transformer, "
        "the letters of the arms that it is tied with, where there are tests, and the architecture’s name.",
    )


def midway(rows: pd.DataFrame, task: str) -> list[Table]:
    """A table per rung that arms of a task leave again by growing further: them and scratch at its size and tokens."""
    mine = summary.beside_scratch(rows[rows["task"] == task])
    scratch, metric, found = summary.baseline(mine), summary.metric(mine), []
    for rung, budget, arms in summary.stops(mine):
        there = pd.concat([arms, scratch[(scratch["rung"] == rung) & (scratch["budget"] == budget)]])
        table = _same_size(
            there,
            metric,
            of_table(there, ties=False),
            name=drawing.slug("midway", rung, budget, task),
            title=f"Arms at rung {rung}, {task}",
            task=task,
            size=f"rung {rung}",
            caption=f"Arms on {task} at rung {rung} of the ladder (0 is the smallest), finished at the "
            f"{words.count(budget)} tokens after which they grow on, lowest mean loss first. {INITIALS}",
        )
        found.append(table)
    return found


def unmatched(rows: pd.DataFrame, task: str) -> Table:
    """The other arms of a task, with what they added and where they ended."""
    mine = rows[rows["task"] == task]
    metric, records, last = summary.metric(mine), summary.by_arm(summary.others(mine)), summary.finals(mine)
    specs = [
        ARM,
        *_losses(metric, records),
        *_per_token(metric),
        (Head(text="final shape"), lambda record: _shape({**record, "own_shape": False, "other_shape": False})),
        _number("weights added", "params_added", words.count),
        _number("final weights", "params_non_embedding", words.count, "non-embedding"),
        _number("target", "params_target", words.count, "weights"),
        *SIZE,
        *_costs(_headline(last[last["ranked"]])),
        STATUS,
    ]
    return make(
        records,
        specs,
        lambda record: "bad" if record["unscored"] else "",
        name=f"unmatched-{drawing.slug(task)}",
        title=f"Arms at other sizes, {task}",
        task=task,
        size="other",
        caption=f"Arms on {task} that end at another size than the largest rung, at the full budget or beyond, lowest "
        f"mean loss first. Cost ratios are to scratch at the largest rung. {INITIALS}",
        sortable=True,
    )


def spent(stages: pd.DataFrame) -> Table:
    """What the study spent, by kind of stage, and in all."""
    sums = summary.spent(stages)
    total = {"kind": "all", **sums.drop(columns="kind").sum().to_dict()}
    specs = [
        _text("kind of stage", "kind"),
        _number("stages", "stages", words.count),
        _number("tokens", "tokens", words.count),
        _number("spent", "flops", words.flops),
        _number("had arms shared no stage", "flops_unshared", words.flops),
        _number("evaluation, apart", "flops_eval", words.flops),
        _number("time", "wall_s", words.seconds),
    ]
    return make(
        [*sums.to_dict("records"), *([total] if len(sums) else [])],
        specs,
        _plainly,
        name="spent",
        title="What the study spent",
        caption="What the study really spent: the sum over distinct stages, each paid for once.",
        empty="No stage yet.",
    )


def paths(rows: pd.DataFrame) -> Table:
    """What each arm's path costs at the full budget, by purpose."""
    specs = [
        ARM,
        _text("task", "task"),
        *(_number(label, name, words.flops) for name, label in summary.PURPOSES.items()),
        _number("sum", "flops", words.flops),
        _number("of which source", "flops_source", words.flops),
        _number("evaluation, apart", "flops_eval", words.flops),
        _number("tuning, apart", "flops_tuning", words.flops),
        _number("source tokens", "tokens_source", words.count),
        _number("probe tokens", "tokens_probe", words.count),
        _number("time", "wall_s", words.seconds, "never a verdict"),
        _number("peak memory", "peak_memory_bytes", lambda value: words.scaled(value, "B")),
    ]
    return make(
        summary.by_arm(summary.ledger(rows)),
        specs,
        _plainly,
        name="paths",
        title="What each arm’s path costs",
        caption="What each arm’s path costs at the full budget, by purpose, as if run alone: mean over seeds.",
        empty="No arm yet.",
        sortable=True,
    )


def failed_rows(rows: pd.DataFrame) -> Table:
    """Every result without a finished loss."""
    bad = rows[~rows["scored"]].sort_values(["task", "arm", "seed", "budget"], kind="stable")
    names = ("arm", "task", "seed", "budget", "status", "reason", "loss")
    return _columns("failed-rows", "Results without a finished loss", bad, names, RESULTS)


def failed_stages(stages: pd.DataFrame) -> Table:
    """Every stage that did not end well."""
    bad = stages[(stages["status"] != "ok").fillna(True)]
    names = ("stage", "kind", "task", "seed", "arms", "status", "reason")
    return _columns("failed-stages", "Stages that did not end well", bad, names, STAGES)


def _columns(name: str, title: str, frame: pd.DataFrame, names: Sequence[str], columns: Mapping[str, Column]) -> Table:
    heads = [Head(text=n, unit=columns[n].unit, number=columns[n].dtype in ("Int64", "Float64")) for n in names]
    specs: list[Spec] = [
        (head, lambda row, column=column: plain(row[column]))  # type: ignore[misc]
        for head, column in zip(heads, names, strict=True)
    ]
    records = frame[list(names)].to_dict("records")
    return make(records, specs, _plainly, most=4 * MOST, name=name, title=title, caption=f"{title}.")


def plain(value: Any) -> Cell:
    """Any value: a number with five digits, the rest as it reads."""
    if words.missing(value):
        return Cell(text=words.DASH)
    if isinstance(value, float):
        return Cell(text=words.significant(value, 5), value=repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(text=words.count(value), value=value)
    return Cell(text=str(value))


def drawn(figure: drawing.Figure) -> Table:
    """The data of a figure."""
    title = f"Data of: {figure.title}"
    return frame(figure.table, name=f"data-{figure.name}", title=title, caption=f"{title}.", most=2 * MOST)


def frame(data: pd.DataFrame, **fields: Any) -> Table:
    """Any DataFrame, a column each. fields: those of `make`."""
    heads = [Head(text=str(c), number=pd.api.types.is_numeric_dtype(data[c])) for c in data.columns]
    specs: list[Spec] = [
        (head, lambda row, column=column: plain(row[column]))  # type: ignore[misc]
        for head, column in zip(heads, data.columns, strict=True)
    ]
    return make(data.to_dict("records"), specs, _plainly, **fields)


def commands(rows: pd.DataFrame) -> Table:
    """What runs each arm again."""
    arms = rows.dropna(subset=["arm"]).drop_duplicates("arm")[["study", "arm"]].to_dict("records")
    specs: list[Spec] = [
        (Head(text="arm"), lambda record: Cell(text=breaking(str(record["arm"])), value=record["arm"])),
        (
            Head(text="command"),
            lambda record: Cell(text=Markup("<code>{}</code>").format(words.command(record["study"], record["arm"]))),
        ),
    ]
    caption = "What runs each arm again, with all its tasks, seeds and budget points; add --out and a new folder."
    return make(arms, specs, _plainly, name="commands", title="Commands", caption=caption, most=4 * MOST)


def compared(records: Sequence[Record], **fields: Any) -> Table:
    """Arms of two folders, as `beside.compare` has them."""

    def change(record: Record) -> Cell:
        return under(formatted(words.change, record["change"]), words.interval(record["low"], record["high"]))

    specs: list[Spec] = [
        (Head(text="arm"), lambda record: Cell(text=breaking(str(record["arm"])), value=record["arm"])),
        _text("task", "task"),
        _number("first, mean loss", "first", words.loss),
        _number("second, mean loss", "second", words.loss),
        (Head(text="second against first, 95 %", unit="% of the loss", number=True), change),
        _number("p", "p", words.p, "unadjusted"),
        _number("seeds in common", "seeds", words.count),
        _text("why no test", "note"),
    ]
    caption = "Arms that either has at its own full budget, largest difference first. Losses are in the task’s metric."
    return make(records, specs, _plainly, caption=caption, sortable=True, most=10 * MOST, **fields)


def definitions() -> list[Table]:
    """Every column of the result tables, with its unit and definition."""
    told = (
        ("results", "Columns of the results, one row per arm, task, seed and budget point", RESULTS),
        ("curves", "Columns of the curves, one row per evaluation along a path", CURVES),
        ("stages", "Columns of the stages, one row per distinct stage", STAGES),
        ("diagnostics", "Columns of the diagnostics, one row per stage of a path and quantity", DIAGNOSTICS),
    )
    heads = [Head(text="column"), Head(text="unit"), Head(text="definition")]
    return [
        Table(
            name=f"columns-{name}",
            title=title,
            caption=f"{title}: definitions.",
            heads=heads,
            rows=[
                Row(cells=[Cell(text=n, value=n), Cell(text=c.unit or words.DASH), Cell(text=c.meaning)])
                for n, c in columns.items()
            ],
        )
        for name, title, columns in told
    ]


def pairs(name: str, title: str, caption: str, values: Mapping[str, Any]) -> Table:
    """Names with values."""
    rows = [Row(cells=[Cell(text=str(k)), Cell(text=v if isinstance(v, str) else str(v))]) for k, v in values.items()]
    return Table(name=name, title=title, caption=caption, heads=[Head(text="what"), Head(text="value")], rows=rows)


def origin(provenance: Mapping[str, Any]) -> Table:
    """How the study was run; what is not recorded says so."""

    def get(key: str) -> str:
        value = provenance.get(key)
        return "not recorded" if value is None else str(value)

    dirty, seeds = provenance.get("git_dirty"), provenance.get("seeds")
    values = {
        "command": Markup("<code>{}</code>").format(get("command")),
        "growbench": get("growbench"),
        "source": get("git_sha") + ("" if dirty is None else ", with uncommitted changes" if dirty else ", clean"),
        "started": get("started"),
        "finished": get("finished"),
        "seeds": ", ".join(map(str, seeds)) if isinstance(seeds, list | tuple) else get("seeds"),
        "device": get("device"),
        "processor": get("cpu"),
        "workers": get("workers"),
        "threads of each": get("threads"),
        "platform": get("platform"),
        "python": get("python"),
    }
    return pairs("origin", "Provenance", "How this study was run.", values)


def data(provenance: Mapping[str, Any]) -> Table:
    """The tasks' data, by fingerprint."""
    fields = ("name", "train_tokens", "valid_tokens", "entropy_rate", "fingerprint")
    specs = [
        _text("task", "name"),
        _number("training tokens", "train_tokens", words.count),
        _number("validation tokens", "valid_tokens", words.count),
        _number("entropy rate", "entropy_rate", words.loss, RESULTS["loss"].unit),
        (
            Head(text="fingerprint, SHA-256"),
            lambda record: Cell(text=Markup("<code>{}</code>").format(record["fingerprint"] or words.DASH)),
        ),
    ]
    records = [{field: task.get(field) for field in fields} for task in provenance.get("tasks") or []]
    caption, empty = "The tasks’ data.", "No data is recorded."
    return make(records, specs, _plainly, name="data", title="Data", caption=caption, empty=empty)
