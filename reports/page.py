"""The page: result tables in, one self-contained HTML file out.

Everything that a plugin or a user wrote passes through the template's autoescape; only figures, style and script, which
are made here, are marked safe. The page's content policy allows no request and no script but its own.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import pandas as pd
import yaml
from markupsafe import Markup

from growbench.reports import figures, summary, words
from growbench.results import CURVES, RESULTS, STAGES, Column

SEEDS_FOR_A_VERDICT = 5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is shown, and the exact value behind it (for sorting and for checking), None where there is none."""

    text: str | Markup
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class Head:
    """A column's heading."""

    text: str
    unit: str = ""
    number: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cells, the first of which heads the row; kind is a CSS class."""

    cells: Sequence[Cell]
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with an id, a caption and one heading per cell."""

    name: str
    title: str
    caption: str | Markup
    heads: Sequence[Head]
    rows: Sequence[Row]
    empty: str = "Nothing to list."
    sortable: bool = False


def render(results: pd.DataFrame, curves: pd.DataFrame, stages: pd.DataFrame, provenance: Mapping[str, Any]) -> str:
    """The report as HTML, from the tables of `growbench.results`; whatever is not there yet is said to be missing."""
    rows = summary.annotate(results)
    curves, stages = summary.tidy(curves, CURVES), summary.tidy(stages, STAGES)
    spec = yaml.safe_load(provenance.get("study") or "") or {}
    cells = list(rows[summary.CELL].dropna().drop_duplicates().itertuples(index=False, name=None))
    look = figures.looks(rows)
    css, js = _resource("page.css"), _resource("page.js")
    last = summary.finals(rows)
    return (
        _environment()
        .get_template("page.html")
        .render(
            growbench=provenance.get("growbench", "(version not recorded)"),
            study=next(iter(rows["study"].dropna()), spec.get("study", "unnamed study")),
            about=spec.get("about", ""),
            banners=_banners(rows, provenance),
            facts=_facts(rows, spec),
            lead=_lead(rows, last),
            gaps=summary.gaps(rows, spec),
            answers=[{"title": f"{a} on {t}", "sentences": list(_answer(rows, t, a))} for t, a in cells]
            + _between(last),
            tasks=_figures(rows, curves, cells, look),
            views=summary.VIEWS,
            matched=[_matched(rows, task) for task in _unique(last[last["ranked"]]["task"])],
            sterile=_sterile(last),
            unmatched=[_unmatched(last, task) for task in _unique(last[~last["ranked"]]["task"])],
            ledger=_ledger(rows, stages),
            failures=_failures(rows, stages),
            definitions=[_definitions(*entry) for entry in _TABLES],
            provenance=_provenance(provenance),
            data=_data(provenance),
            packages=_pairs(
                "packages", "Packages", "Versions of the installed packages.", provenance.get("packages") or {}
            ),
            strategies=provenance.get("strategies") or [],
            study_file=provenance.get("study", ""),
            css=Markup(css),  # noqa: S704
            js=Markup(js),  # noqa: S704
            script_hash=f"sha256-{base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()}",
        )
    )


def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_resource)
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, loader=loader, trim_blocks=True)


def _resource(name: str) -> str:
    return (files("growbench.reports") / name).read_text(encoding="utf-8").strip()


def _unique(values: Iterable[Any]) -> list[str]:
    """In the order of the tables, which is the study's."""
    return list(dict.fromkeys(str(v) for v in values if not words.missing(v)))


# ------------------------------------------------------------------------------------------------ words


def _banners(rows: pd.DataFrame, provenance: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    if rows.empty:
        return [{"word": "Empty.", "text": "No result has been written yet."}]
    if not rows["tuned"].fillna(False).all():
        found.append(
            {"word": "Untuned.", "text": "All arms share one learning rate, which was not tuned for any of them."}
        )
    seeds = rows["seed"].nunique()
    if seeds < SEEDS_FOR_A_VERDICT:
        found.append({"word": f"Screening: {words.plural(seeds, 'seed')}, no test is shown.", "text": "Points only."})
    else:
        found.append({"word": "No test is shown.", "text": f"Points and mean differences over {seeds} seeds."})
    bad = rows[~rows["scored"]]
    if len(bad):
        arms = words.plural(bad["arm"].nunique(), "arm")
        found.append(
            {"word": "Failures.", "text": f"{arms} did not always finish and are scored as the worst: see Failures."}
        )
    if provenance.get("git_dirty"):
        found.append({"word": "Uncommitted source.", "text": "The code differed from the commit that is named below."})
    return found


def _facts(rows: pd.DataFrame, spec: Mapping[str, Any]) -> list[tuple[str, str | Markup]]:
    budget = summary.full_budget(rows)
    points = sorted({int(b) for b in rows["budget"].dropna()})
    facts: list[tuple[str, str | Markup]] = [
        ("Tasks", words.listing(_unique(rows["task"])) or words.DASH),
        ("Architectures", words.listing(_unique(rows["architecture"])) or words.DASH),
        ("Budget of every arm", f"{words.count(budget)} tokens" if budget else words.DASH),
        ("Budget points", f"{words.listing([words.count(p) for p in points])} tokens" if points else words.DASH),
        (
            "Arms and seeds",
            f"{words.plural(rows['arm'].nunique(), 'arm')}, {words.plural(rows['seed'].nunique(), 'seed')}",
        ),
        ("Parametrisation", words.listing(_unique(rows["parametrization"])) or words.DASH),
    ]
    for architecture, rungs in (spec.get("ladders") or {}).items():
        steps = [Markup("<code>{}</code>").format(", ".join(f"{k} {v}" for k, v in rung.items())) for rung in rungs]
        facts.append((f"Ladder of {architecture}, smallest first", Markup("<br>").join(steps)))
    return facts


def _lead(rows: pd.DataFrame, last: pd.DataFrame) -> str:
    if rows.empty:
        return "Nothing can be said yet: there are no results."
    seeds = rows["seed"].nunique()
    compared = summary.against_scratch(rows)
    if compared["difference"].notna().sum() == 0:
        return "Growing cannot be compared to training from scratch yet: one of the two has no finished run."
    tokens, cost = (
        pd.concat([summary.mean_difference(one, column).dropna() for _, one in compared.groupby("task")])
        for column in ("difference", "difference_flops")
    )
    said = (
        f"At equal tokens {_of(int((tokens < 0).sum()), len(tokens))} grown arms at matched size end below from-scratch"
    )
    said += f"; at equal compute, {_of(int((cost < 0).sum()), len(cost))} do." if len(cost) else "."
    if seeds < SEEDS_FOR_A_VERDICT:
        said += f" With {words.plural(seeds, 'seed')} these are points, and nothing is decided."
    else:
        said += " These are means; no test has been made, and nothing is decided."
    return said


def _of(some: int, total: int) -> str:
    return f"{'none' if some == 0 else 'all' if some == total else some} of {total}"


def _answer(rows: pd.DataFrame, task: str, architecture: str) -> Iterable[Markup]:
    """What came out for one task and architecture, in sentences made from the numbers."""
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    records = summary.by_arm(summary.finals(mine[mine["ranked"]]))
    if not records:
        yield Markup("No arm at matched size has a result at the full budget.")
        return
    best, others = records[0], records[1:]
    yield _lowest(best, others)
    compared = summary.against_scratch(mine)
    scratch = summary.by_arm(summary.finals(summary.baseline(mine)))
    if not scratch:
        yield Markup("Without a finished from-scratch run nothing can be set beside it.")
    elif compared.empty:
        yield Markup("No grown arm at matched size can be set beside scratch yet.")
    else:
        yield _beside(compared, "difference", "At equal tokens", scratch[0]["loss"])
        yield _beside(compared, "difference_flops", "At equal FLOPs", None)
    free = [r for r in records if r["sterile"]]
    if free:
        names = words.listing([str(r["arm"]) for r in free])
        yield Markup("Sterile by design, so controls only: {}.").format(names)
    for record in records:
        if record["unscored"]:
            sentence = Markup("<strong>{}</strong>: {}; its mean holds the uniform predictor’s loss for each of these.")
            yield sentence.format(record["arm"], record["status"])


def _lowest(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Markup:
    bits = "" if best["bits_per_byte"] is None else f" ({words.fixed(best['bits_per_byte'], 4)} bits per byte)"
    spread = f"seeds {words.span(best['losses'])}" if len(best["losses"]) > 1 else "one seed"
    said = Markup("<strong>{}</strong> ends lowest at the full budget: {} nats per token{}, {}.").format(
        best["arm"], words.loss(best["loss"]), bits, spread
    )
    by_seed = dict(zip(best["seeds"], best["losses"], strict=True))
    close = []
    for other in others:
        shared = [(by_seed[s], v) for s, v in zip(other["seeds"], other["losses"], strict=True) if s in by_seed]
        if shared and not all(mine < theirs for mine, theirs in shared):
            close.append(str(other["arm"]))
    if not others:
        return said + Markup(" It is the only arm at matched size.")
    if close:
        return said + Markup(" Not separated from it, since in at least one seed they end as low: {}.").format(
            words.listing(close)
        )
    if len(best["losses"]) < 2:
        return said + Markup(" One seed says nothing about how stable this order is.")
    following = others[0]
    return said + Markup(" In each seed it is below every other arm; next is {} at {}.").format(
        following["arm"], words.loss(following["loss"])
    )


def _beside(compared: pd.DataFrame, column: str, heading: str, scratch: float | None) -> Markup:
    """The grown arms against scratch in one sentence: how many end lower, the best of them, and what could not be read."""
    usable = compared[compared["scored"]]
    means = summary.mean_difference(compared, column).dropna().sort_values()
    start = Markup("<strong>{}</strong>").format(heading)
    if scratch is not None:
        start += f", where scratch ends at {words.loss(scratch)}"
    notes = sorted({n for n in compared.loc[compared[column].isna(), "note"] if n}) if column != "difference" else []
    if means.empty:
        why = f": {words.listing(notes)}" if notes else ""
        return start + Markup(", no grown arm can be compared{}.").format(why)
    lower = means[means < 0]
    first = str(means.index[0])
    each = usable.loc[usable["arm"] == first, column].dropna()
    said = start + Markup(
        ", {} grown arms end lower. The lowest is {}, {} nats per token {} scratch (seeds {})."
    ).format(
        _of(len(lower), len(means)),
        first,
        words.loss(abs(means.iloc[0])),
        "below" if means.iloc[0] < 0 else "above",
        words.span(list(each), words.signed),
    )
    signs = {value < 0 for value in each}
    if len(signs) > 1:
        said += Markup(" The seeds disagree on its sign, so this decides nothing.")
    if notes:
        said += Markup(" No value where: {}.").format(words.listing(notes))
    return said


def _between(last: pd.DataFrame) -> list[dict[str, Any]]:
    """Scratch against scratch, where a task has more than one architecture."""
    sentences = []
    for task in _unique(last["task"]):
        records = summary.by_arm(summary.baseline(last[last["task"] == task]))
        if len(records) > 1:
            parts = [
                f"{r['architecture']} {words.loss(r['loss'])} ({words.count(r['params_non_embedding'])} weights)"
                for r in records
            ]
            sentences.append(Markup("From scratch on {}, nats per token: {}.").format(task, words.listing(parts)))
    return [{"title": "Between architectures", "sentences": sentences}] if sentences else []


# ------------------------------------------------------------------------------------------------ figures


def _figures(
    rows: pd.DataFrame, curves: pd.DataFrame, cells: Sequence[tuple[str, str]], look: dict[str, figures.Look]
) -> list[dict[str, Any]]:
    tasks = []
    for task in dict(cells):
        drawn = [
            [_shown(f) for f in figures.draw(rows, curves, task=task, architecture=a, look=look)]
            for t, a in cells
            if t == task
        ]
        *views, tokens, paired = (list(kind) for kind in zip(*drawn, strict=True))
        tasks.append(
            {
                "name": task,
                "views": [
                    {"name": name, "counts": counts, "figures": kind}
                    for (name, (_, counts)), kind in zip(summary.VIEWS.items(), views, strict=True)
                ],
                "tokens": tokens,
                "paired": paired,
            }
        )
    return tasks


def _shown(figure: figures.Figure) -> dict[str, Any]:
    frame = figure.table
    numeric = {c: pd.api.types.is_numeric_dtype(frame[c]) for c in frame.columns}
    rows = [Row(cells=[_plain(row[c]) for c in frame.columns]) for row in frame.to_dict("records")]
    data = Table(
        name=f"data-{figure.name}",
        title=f"Data: {figure.title}",
        caption=f"Data of: {figure.title}.",
        heads=[Head(text=str(c), number=numeric[c]) for c in frame.columns],
        rows=rows,
    )
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "data": data,
        "svg": Markup(figure.svg),  # noqa: S704 - made by matplotlib, which escapes its texts
    }


def _plain(value: Any) -> Cell:
    if words.missing(value):
        return Cell(text=words.DASH)
    if isinstance(value, float):
        return Cell(text=words.significant(value, 5), value=repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(text=words.count(value), value=value)
    return Cell(text=str(value))


# ------------------------------------------------------------------------------------------------ tables


def _cell(form: Callable[[Any], str], value: Any) -> Cell:
    if words.missing(value):
        return Cell(text=words.DASH)
    return Cell(text=form(value), value=repr(float(value)) if isinstance(value, float) else value)


def _arm_cell(record: Mapping[str, Any]) -> Cell:
    badge = Markup('<span class="badge">sterile control</span>') if record["sterile"] else Markup("")
    return Cell(text=Markup("{}{}").format(record["arm"], badge), value=record["arm"])


def _seed_losses(record: Mapping[str, Any]) -> Cell:
    return Cell(
        text=Markup(" ").join(
            Markup('<span class="sub" data-seed="{}" data-loss="{}">{}: {}</span>').format(s, repr(v), s, words.loss(v))
            for s, v in zip(record["seeds"], record["losses"], strict=True)
        )
    )


def _cost_cell(record: Mapping[str, Any], column: str, scratch: Mapping[str, Any] | None) -> Cell:
    value = record[column]
    if value is None:
        return Cell(text=words.DASH)
    text = Markup("{}").format(words.flops(value))
    if scratch and scratch[column]:
        text += Markup('<span class="sub">{} scratch</span>').format(words.ratio(value / scratch[column]))
    return Cell(text=text, value=repr(float(value)))


_COSTS = tuple(Head(text=f"cost, {view}", number=True) for view in summary.VIEWS)


def _matched(rows: pd.DataFrame, task: str) -> Table:
    """The table of one task: every ranked arm at the full budget, both architectures, lowest mean loss first."""
    last = summary.finals(summary.paired(rows))
    last = last[last["ranked"] & (last["task"] == task)]
    reference = {r["architecture"]: r for r in summary.by_arm(summary.baseline(last))}
    lines = []
    for r in summary.by_arm(last):
        scratch = reference.get(r["architecture"])
        own = scratch is not None and r["arm"] == scratch["arm"]
        lines.append(
            Row(
                kind="bad" if r["unscored"] else "reference" if own else "",
                cells=[
                    _arm_cell(r), Cell(text=r["architecture"] or words.DASH), Cell(text=str(len(r["seeds"])), value=len(r["seeds"])),
                    _cell(words.count, r["params_non_embedding"]), _cell(words.count, r["tokens"]),
                    _cell(words.significant, r["tokens_per_param"]), _cell(words.loss, r["loss"]), _seed_losses(r),
                    _cell(lambda v: words.fixed(v, 4), r["bits_per_byte"]),
                    _cell(lambda v: words.fixed(v, 4), r["ratio"]),
                    *(_cost_cell(r, column, scratch) for column, _ in summary.VIEWS.values()),
                    _cell(words.significant, r["growth_gap"]), _cell(words.signed, r["growth_loss_jump"]),
                    _cell(words.percent, r["alive_share"]), Cell(text=r["status"], value=r["status"]),
                ],
            )
        )  # fmt: skip
    heads = [
        Head(text="arm"), Head(text="architecture"), Head(text="seeds", number=True),
        Head(text="weights", unit="non-embedding", number=True), Head(text="tokens", number=True),
        Head(text="tokens per weight", number=True), Head(text="loss, mean", unit="nats/token", number=True),
        Head(text="loss by seed", unit="nats/token"), Head(text="bits per byte", number=True),
        Head(text="loss ratio to scratch", unit="mean by seed", number=True), *_COSTS,
        Head(text="growth gap", unit="logits", number=True), Head(text="loss jump", unit="nats/token", number=True),
        Head(text="alive share", number=True), Head(text="status"),
    ]  # fmt: skip
    caption = (
        f"Arms at matched size on {task}, at the full budget of {words.count(summary.full_budget(rows))} tokens, lowest mean "
        "loss first. Shaded: the from-scratch reference of an architecture, to which its ratios refer. Values are means over seeds."
    )
    return Table(
        name=f"matched-{figures.slug(task)}", title=f"Arms at matched size, {task}", caption=caption, heads=heads, rows=lines,
        sortable=True,
    )  # fmt: skip


def _unmatched(last: pd.DataFrame, task: str) -> Table:
    others = last[~last["ranked"] & (last["task"] == task)]
    reference = {r["architecture"]: r for r in summary.by_arm(summary.baseline(last[last["task"] == task]))}
    lines = [
        Row(
            kind="bad" if r["unscored"] else "",
            cells=[
                _arm_cell(r), Cell(text=r["architecture"] or words.DASH), Cell(text=str(len(r["seeds"])), value=len(r["seeds"])),
                _cell(words.count, r["params_added"]), _cell(words.count, r["params_non_embedding"]),
                _cell(words.count, r["params_target"]), _cell(words.count, r["tokens"]),
                _cell(words.significant, r["tokens_per_param"]), _cell(words.loss, r["loss"]), _seed_losses(r),
                _cell(lambda v: words.fixed(v, 4), r["bits_per_byte"]),
                *(_cost_cell(r, column, reference.get(r["architecture"])) for column, _ in summary.VIEWS.values()),
                Cell(text=r["status"], value=r["status"]),
            ],
        )
        for r in summary.by_arm(others)
    ]  # fmt: skip
    heads = [
        Head(text="arm"), Head(text="architecture"), Head(text="seeds", number=True),
        Head(text="weights added", number=True), Head(text="final weights", unit="non-embedding", number=True),
        Head(text="target", unit="weights", number=True), Head(text="tokens", number=True),
        Head(text="tokens per weight", number=True), Head(text="loss, mean", unit="nats/token", number=True),
        Head(text="loss by seed", unit="nats/token"), Head(text="bits per byte", number=True), *_COSTS, Head(text="status"),
    ]  # fmt: skip
    caption = f"Arms on {task} that end at another size than the largest rung, at the full budget. Not ranked."
    return Table(
        name=f"unmatched-{figures.slug(task)}", title=f"Arms at other sizes, {task}", caption=caption, heads=heads, rows=lines,
        sortable=True,
    )  # fmt: skip


def _sterile(last: pd.DataFrame) -> list[str]:
    marked = last[last["sterile"].fillna("") != ""].drop_duplicates("arm")
    return [f"{arm}: {why}" for arm, why in sorted(zip(marked["arm"], marked["sterile"], strict=True))]


def _ledger(rows: pd.DataFrame, stages: pd.DataFrame) -> dict[str, Any]:
    spent = summary.spent(stages)
    real, alone, apart = (float(spent[c].sum()) for c in ("flops", "flops_unshared", "flops_eval"))
    heads = [
        Head(text="kind of stage"), Head(text="stages", number=True), Head(text="tokens", number=True),
        Head(text="spent", number=True), Head(text="had every arm paid alone", number=True),
        Head(text="evaluation, apart", number=True), Head(text="time", number=True),
    ]  # fmt: skip
    forms = (words.count, words.count, words.flops, words.flops, words.flops, words.seconds)
    columns = ("stages", "tokens", "flops", "flops_unshared", "flops_eval", "wall_s")
    total = {"kind": "all", **{c: spent[c].sum() for c in columns}}
    lines = [
        Row(
            cells=[
                Cell(text=str(r["kind"]), value=r["kind"]),
                *(_cell(f, r[c]) for f, c in zip(forms, columns, strict=True)),
            ]
        )
        for r in [*spent.to_dict("records"), *([total] if len(spent) else [])]
    ]
    said = "No stage has been recorded yet."
    if len(spent):
        saved = (
            f", {words.percent(1 - real / alone)} less than the {words.flops(alone)} of paying every path alone"
            if alone
            else ""
        )
        said = (
            f"The study spent {words.flops(real)} on {words.plural(len(stages), 'distinct stage')}{saved}: arms share what they "
            f"have in common, such as the source model. Evaluation took {words.flops(apart)} more. An arm’s cost, in the second "
            "table, is the sum along its own path, as if it had been run alone."
        )
    books = summary.ledger(rows)
    purposes = [*summary.PURPOSES, "flops", "flops_source", "flops_eval", "flops_tuning"]
    labels = [*summary.PURPOSES.values(), "sum", "of which source", "evaluation, apart", "tuning, apart"]
    arms = [
        Row(
            cells=[
                _arm_cell(r), Cell(text=r["task"] or words.DASH), *(_cell(words.flops, r[c]) for c in purposes),
                _cell(words.count, r["tokens_source"]), _cell(words.count, r["tokens_probe"]), _cell(words.seconds, r["wall_s"]),
                _cell(lambda v: words.scaled(v, "B"), r["peak_memory_bytes"]),
            ]
        )
        for r in summary.by_arm(books)
    ]  # fmt: skip
    arm_heads = [
        Head(text="arm"), Head(text="task"), *(Head(text=label, number=True) for label in labels),
        Head(text="source tokens", number=True), Head(text="probe tokens", number=True),
        Head(text="time", unit="never a verdict", number=True), Head(text="peak memory", number=True),
    ]  # fmt: skip
    return {
        "words": said,
        "spent": Table(
            name="spent", title="What the study spent", heads=heads, rows=lines, empty="No stage yet.",
            caption="What the study really spent: the sum over distinct stages, each paid for once however many arms share it.",
        ),
        "arms": Table(
            name="paths", title="What each arm’s path costs", heads=arm_heads, rows=arms, empty="No arm yet.", sortable=True,
            caption="What each arm’s path costs at the full budget, by purpose, in FLOPs: mean over seeds.",
        ),
    }  # fmt: skip


def _failures(rows: pd.DataFrame, stages: pd.DataFrame) -> dict[str, Any]:
    bad = rows[~rows["scored"]].sort_values(["task", "arm", "seed", "budget"], kind="stable")
    broken = stages[(stages["status"] != "ok").fillna(True)]
    restarts = int(stages["restarts"].sum()) if len(stages) else 0
    said = (
        "Every run that was started finished."
        if bad.empty and broken.empty
        else (
            f"{words.plural(len(bad), 'result row')} of {len(rows):,} and {words.plural(len(broken), 'stage')} did not end well. "
            "They are listed in full, and scored as the uniform predictor."
        )
    )
    said += (
        f" Stages were restarted {words.plural(restarts, 'time')} after failures of the machine." if restarts else ""
    )
    names = ("arm", "task", "seed", "budget", "status", "reason", "loss")
    stage_names = ("stage", "kind", "task", "seed", "arms", "status", "reason")
    return {
        "words": said,
        "rows": _listing("failed-rows", "Results without a finished loss", bad, names, RESULTS),
        "stages": _listing("failed-stages", "Stages that did not end well", broken, stage_names, STAGES),
    }


def _listing(name: str, title: str, frame: pd.DataFrame, names: Sequence[str], columns: Mapping[str, Column]) -> Table:
    heads = [Head(text=n, unit=columns[n].unit, number=columns[n].dtype in ("Int64", "Float64")) for n in names]
    rows = [Row(cells=[_plain(row[n]) for n in names]) for row in frame[list(names)].to_dict("records")]
    return Table(name=name, title=title, caption=f"{title}.", heads=heads, rows=rows)


_TABLES = (
    ("results", "Columns of the results, one row per arm, task, seed and budget point", RESULTS),
    ("curves", "Columns of the curves, one row per evaluation along a path", CURVES),
    ("stages", "Columns of the stages, one row per distinct stage", STAGES),
)


def _definitions(name: str, title: str, columns: Mapping[str, Column]) -> Table:
    rows = [
        Row(cells=[Cell(text=n, value=n), Cell(text=c.unit or words.DASH), Cell(text=c.meaning)])
        for n, c in columns.items()
    ]
    heads = [Head(text="column"), Head(text="unit"), Head(text="definition")]
    return Table(name=f"columns-{name}", title=title, caption=f"{title}: definitions.", heads=heads, rows=rows)


# ------------------------------------------------------------------------------------------------ provenance


def _pairs(name: str, title: str, caption: str, pairs: Mapping[str, Any]) -> Table:
    rows = [Row(cells=[Cell(text=str(k)), Cell(text=v if isinstance(v, str) else str(v))]) for k, v in pairs.items()]
    return Table(name=name, title=title, caption=caption, heads=[Head(text="what"), Head(text="value")], rows=rows)


def _provenance(provenance: Mapping[str, Any]) -> Table:
    def get(key: str) -> str:
        value = provenance.get(key)
        return "not recorded" if value is None else str(value)

    dirty = provenance.get("git_dirty")
    state = "" if dirty is None else ", with uncommitted changes" if dirty else ", clean"
    seeds = provenance.get("seeds")
    pairs = {
        "command": Markup("<code>{}</code>").format(get("command")),
        "growbench": get("growbench"),
        "source": get("git_sha") + state,
        "started": get("started"),
        "finished": get("finished"),
        "seeds": ", ".join(map(str, seeds)) if isinstance(seeds, list | tuple) else get("seeds"),
        "device": get("device"),
        "processor": get("cpu"),
        "workers, threads each": f"{get('workers')}, {get('threads')}",
        "platform": get("platform"),
        "python": get("python"),
    }
    return _pairs("origin", "Provenance", "How this study was run.", pairs)


def _data(provenance: Mapping[str, Any]) -> Table:
    heads = [
        Head(text="task"), Head(text="training tokens", number=True), Head(text="validation tokens", number=True),
        Head(text="entropy rate", unit="nats/token", number=True), Head(text="fingerprint of the data, SHA-256"),
    ]  # fmt: skip
    rows = [
        Row(
            cells=[
                Cell(text=str(task.get("name"))), _cell(words.count, task.get("train_tokens")),
                _cell(words.count, task.get("valid_tokens")), _cell(words.loss, task.get("entropy_rate")),
                Cell(text=Markup("<code>{}</code>").format(task.get("fingerprint"))),
            ]
        )
        for task in provenance.get("tasks") or []
    ]  # fmt: skip
    return Table(
        name="data", title="Data", caption="The tasks’ data.", heads=heads, rows=rows, empty="No data is recorded."
    )
