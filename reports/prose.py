"""What came out, in plain words: sentences made from numbers, honest where nothing is decided.

One idea: a sentence states a mean, the spread of its seeds, and whether the seeds agree. Every name in it is escaped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from growbench import stats
from growbench.reports import summary, verdicts, words

FEW_LADDERS, FEW_POINTS = 3, 6
"""How many ladders and budget points are shown one by one."""


def banners(
    rows: pd.DataFrame, provenance: Mapping[str, Any], claims: pd.DataFrame | None = None
) -> list[dict[str, str]]:
    """What a reader must know before any number: a word and a sentence each."""
    if rows.empty:
        return [{"word": "Empty.", "text": "No result has been written yet."}]
    found = []
    if not rows["tuned"].fillna(False).all():
        found.append({"word": "Untuned.", "text": "The learning rate was not tuned for any arm."})
        if rows["tuned"].fillna(False).any():
            found[-1]["text"] = "The learning rate was tuned for some arms only."
    seeds = words.plural(rows["seed"].nunique(), "seed")
    if rows["seed"].nunique() < stats.SEEDS:
        found.append({"word": f"Screening: {seeds}, no test is shown.", "text": "Points only."})
    elif claims is None or claims.empty:
        found.append({"word": "No verdict.", "text": f"Intervals and tests are of {seeds}; no claim was looked at."})
    else:
        said = f"{verdicts.counts(claims)}, of {words.plural(len(claims), 'claim')}, with {seeds}."
        if rows["tuned"].fillna(False).all():
            said += " Every arm was tuned."
        found.append({"word": "Verdicts.", "text": said})
    bad = rows[~rows["scored"]]["arm"].nunique()
    if bad:
        text = f"{words.plural(bad, 'arm')} did not always finish, scored as the uniform predictor: see Failures."
        found.append({"word": "Failures.", "text": text})
    if provenance.get("git_dirty"):
        found.append({"word": "Uncommitted source.", "text": "The code differed from the commit that is named below."})
    return found


def metrics(rows: pd.DataFrame) -> str:
    """In what each task is judged."""
    tasks = {task: summary.metric(rows[rows["task"] == task]) for task in summary.unique(rows["task"])}
    judged: dict[str, list[str]] = {}
    for task, metric in tasks.items():
        judged.setdefault(metric.spoken, []).append(task)
    return words.listing([f"validation {spoken} on {words.listing(names)}" for spoken, names in judged.items()])


def facts(rows: pd.DataFrame, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was asked: tasks, architectures, budget, ladder."""
    full = summary.full_budget(rows)
    arms, seeds = rows["arm"].nunique(), rows["seed"].nunique()
    found: list[tuple[str, str]] = [
        ("Tasks", words.listing(summary.unique(rows["task"])) or words.DASH),
        ("Architectures", words.listing(summary.unique(rows["architecture"])) or words.DASH),
        ("Budget of every arm", f"{words.count(full)} tokens" if full else words.DASH),
        ("Budget points", _budget_points(rows[rows["ranked"]]) + _beyond(rows)),
        ("Arms and seeds", f"{words.plural(arms, 'arm')}, {words.plural(seeds, 'seed')}"),
        ("Parametrization", words.listing(summary.unique(rows["parametrization"])) or words.DASH),
    ]
    ladders = spec.get("ladders") or {}
    shown = {
        f"Ladder of {architecture}, smallest first": Markup("<br>").join(
            Markup("<code>{}</code>").format(", ".join(f"{k} {v}" for k, v in rung.items())) for rung in rungs
        )
        for architecture, rungs in ladders.items()
    }
    if len(ladders) <= FEW_LADDERS:
        return found + list(shown.items())
    each = Markup("").join(Markup("<p>{}<br>{}</p>").format(name, steps) for name, steps in shown.items())
    folded = Markup("<details><summary>their sizes</summary>{}</details>").format(each)
    return [*found, (words.plural(len(ladders), "ladder"), folded)]


def _listed(budgets: Iterable[int]) -> str:
    """Budget points one by one, or how many from where to where."""
    points = [words.count(budget) for budget in sorted(budgets)]
    return (
        words.listing(points) if len(points) <= FEW_POINTS else f"{len(points)} points from {points[0]} to {points[-1]}"
    )


def _budget_points(ranked: pd.DataFrame) -> str:
    """Where arms are compared, and where scratch was cooled down besides."""
    scratch = (ranked["strategy"] == "scratch").fillna(False)
    grown, all_ = ({int(b) for b in points.dropna()} for points in (ranked.loc[~scratch, "budget"], ranked["budget"]))
    besides = all_ - grown
    if not all_:
        return words.DASH
    more = f"; scratch also at {_listed(besides)}, to be read off at equal FLOPs" if grown and besides else ""
    return f"{_listed(grown or all_)} tokens{more}"


def _beyond(rows: pd.DataFrame) -> str:
    """Why a source trained on has a budget point above the budget of every arm."""
    mine = rows[summary.ungrown(rows)]
    more = mine.loc[(mine["budget"] > (summary.full_budget(rows) or 0)).fillna(False), "budget"]
    if more.empty:
        return ""
    return f"; continue also at {_listed(more.unique())}, where its FLOPs meet those of the grown arms"


def lead(rows: pd.DataFrame) -> str:
    """The whole study in a few sentences."""
    if rows.empty:
        return "Nothing can be said yet: there are no results."
    compared = summary.contenders(summary.against_scratch(rows))
    scratch = summary.finals(summary.baseline(rows[rows["ranked"]]))
    for arms, name in ((compared, "grown arm at matched size"), (scratch, "run from scratch at the target size")):
        if arms.empty:
            return f"There is no {name} at the full budget: growing cannot be compared with training from scratch."
        if not arms["scored"].any():
            return f"No {name} finished: growing cannot be compared with training from scratch."
    tokens, cost = (
        pd.concat([summary.mean_difference(one, column).dropna() for _, one in compared.groupby("task")])
        for column in ("difference", "difference_flops")
    )
    said = f"At equal tokens, in the mean over seeds, {_ended(tokens, 'below scratch', of=' at matched size')}"
    if len(cost):
        said += f"; at equal FLOPs, {_ended(cost, 'below scratch’s interpolated loss')}"
    said += "."
    if lower := "; ".join(_rival(record, rows) for record in summary.rivals(rows)):
        said += f" But the smaller source, trained on without growing, ended lower than the best grown arm: {lower}."
    if not scratch["scored"].all():
        said += " Scratch did not finish with every seed, and counts as the uniform predictor there."
    if compared["own_shape"].any():
        said += (
            " Arms that end in another shape than the ladder’s are set beside scratch of that shape, where it was run."
        )
    if (rows["sterile"].fillna("") != "").any():
        said += " Sterile controls are not counted."
    if rows["seed"].nunique() < stats.SEEDS:
        return f"{said} With {words.plural(rows['seed'].nunique(), 'seed')} these are points, and nothing is decided."
    return f"{said} These are means; their intervals and tests are under At matched size, what they decide is above."


def tested(rows: pd.DataFrame) -> str:
    """What is tested in the tables of arms at matched size, or why nothing is."""
    seeds = rows["seed"].nunique()
    if seeds < stats.SEEDS:
        return (
            f"There are points only, no interval and no test: this study has {words.plural(seeds, 'seed')}, and a test "
            f"needs {stats.SEEDS}."
        )
    untuned = "" if rows["tuned"].fillna(False).all() else (
        " As not every arm is tuned, these tests hold for the settings that the arms were given, and decide no claim."
    )  # fmt: skip
    return (
        "Against scratch: the mean log ratio of an arm’s loss to that of scratch at equal tokens, as a change in "
        "percent, with its 95 % interval; beneath the difference at equal FLOPs stands the interval of that in "
        "percent. p is adjusted by Holm over the arms of the table that are set beside scratch. Arms of the study’s "
        f"own schedule that share a letter are not told apart by any test.{untuned}"
    )


def _rival(record: Mapping[str, Any], rows: pd.DataFrame) -> str:
    """A source trained on that ends below the best grown arm, and where."""
    metric = summary.metric(rows[rows["task"] == record["task"]])
    on = f" on {record['task']}" if rows["task"].nunique() > 1 else ""
    lower = words.listing(
        [
            f"at equal {cost} ({words.loss(loss)})"
            for cost, loss in (("tokens", record["at_tokens"]), ("FLOPs", record["at_flops"]))
            if loss < record["score"]
        ]
    )
    return f"{record['arm']}{on} {lower}, where {record['best']} ends at {words.loss(record['score'])} {metric.spoken}"


def _ended(differences: pd.Series, where: str, of: str = "") -> str:
    """How many grown arms ended there: those whose difference is below zero."""
    lower, total = int((differences < 0).sum()), len(differences)
    if total == 1:
        return f"the one grown arm{of} {'ended' if lower else 'did not end'} {where}"
    some = {0: "none of", total: "all"}.get(lower, f"{lower} of")
    return f"{some} {words.plural(total, 'grown arm')}{of} ended {where}"


def answers(rows: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """A title and sentences per task and architecture, then scratch against scratch."""
    found = [{"title": f"{a} on {t}", "sentences": list(_answer(rows[rows["task"] == t], a))} for t, a in cells]
    between = list(_between(summary.finals(rows)))
    return [*found, {"title": "Between architectures", "sentences": between}] if between else found


def _answer(of_task: pd.DataFrame, architecture: str) -> Iterable[Markup]:
    metric, mine = summary.metric(of_task), of_task[of_task["architecture"] == architecture]
    last = summary.finals(mine[mine["ranked"]])
    records = summary.by_arm(last)
    if not records:
        yield Markup("No arm at matched size has a result at the full budget.")
    elif not last["scored"].any():
        yield Markup("No arm at matched size finished: all score as the uniform predictor, and none is lowest.")
    else:
        yield _lowest(records[0], records[1:], metric)
        yield from _source(mine)
        yield from _compared(mine, metric)
    yield from _midway(mine, metric)
    yield from _ungrown(mine, metric)
    sterile = [str(record["arm"]) for record in records if record["sterile"]]
    if sterile:
        yield Markup("Sterile by design, so controls only: {}.").format(words.listing(sterile))
    for record in records:
        if record["unscored"]:
            said = Markup("<strong>{}</strong>: {}; its mean holds the uniform predictor’s loss for each of these.")
            yield said.format(record["arm"], record["status"])


def _source(mine: pd.DataFrame) -> Iterable[Markup]:
    """What grown arms spent before their last growth, in tokens, FLOPs and as a share of their path."""
    grown = summary.grown(mine)
    grown = grown[grown["scored"]]
    if grown.empty:
        return
    parts = grown.assign(share=grown["flops_source"] / grown["flops"]).groupby("arm")
    forms = {"flops_source": words.flops, "tokens_source": words.count, "share": words.percent}
    spans = [words.span([*parts[name].mean()], form) for name, form in forms.items()]
    scratch = summary.finals(summary.baseline(mine[mine["ranked"]]))["flops"].mean()
    beside = "" if pd.isna(scratch) else f"; scratch costs {words.flops(scratch)}"
    yield Markup("<strong>The source cost</strong> {} for {} tokens, {} of a grown arm’s whole cost{}.").format(
        *spans, beside
    )


def _compared(mine: pd.DataFrame, metric: summary.Metric) -> Iterable[Markup]:
    """Grown arms against scratch at the full budget, at equal tokens and at equal FLOPs."""
    compared = summary.contenders(summary.against_scratch(mine))
    scratch = summary.by_arm(summary.finals(summary.baseline(mine[mine["ranked"]])))
    if not scratch:
        yield Markup("Without a from-scratch run there is nothing to set the others beside.")
    elif compared.empty:
        yield Markup("There is no grown arm at matched size to set beside scratch.")
    else:
        at_tokens = f"At equal tokens, where scratch ends at {words.loss(scratch[0]['score'])}"
        yield _beside(compared, "difference", at_tokens, metric)
        yield _beside(compared, "difference_flops", "At equal FLOPs, against scratch’s interpolated loss", metric)
        yield from _shapes(compared, metric)


def _shapes(compared: pd.DataFrame, metric: summary.Metric) -> Iterable[Markup]:
    """Which arms are set beside scratch of another shape than the ladder's, and which lack a scratch of theirs."""
    for reference, rows in compared[compared["own_shape"]].groupby("reference", sort=True):
        where = words.loss(rows.drop_duplicates("seed")["scratch"].mean())
        yield Markup("<strong>In their own shape</strong>, scratch ({}) ends at {} {}; set beside it: {}.").format(
            reference, where, metric.spoken, words.listing(summary.unique(rows["arm"]))
        )
    for reference, rows in compared[compared["other_shape"]].groupby("reference", sort=True):
        yield Markup("<strong>Of another shape</strong> than the scratch that they are set beside ({}): {}.").format(
            reference, words.listing(summary.unique(rows["arm"]))
        )


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    return f"seeds {words.span(values, form)}" if len(values) > 1 else "one seed"


def _lowest(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]], metric: summary.Metric) -> Markup:
    """Which arm ends lowest, and which others are not above it in every seed."""
    said = Markup("<strong>{}</strong> has the lowest mean at the full budget: {} {} ({}).").format(
        best["arm"], words.loss(best["score"]), metric.spoken, _spread(best["scores"], words.loss)
    )
    if metric.limit is not None:
        above = words.loss(best["score"] - metric.limit)
        said += Markup(" That is {} {} above the source’s entropy rate.").format(above, metric.spoken)
    if not others:
        return said + Markup(" It is the only arm at matched size.")
    if len(best["scores"]) < 2:
        return said + Markup(" One seed says nothing about how stable this order is.")
    by_seed = dict(zip(best["seeds"], best["scores"], strict=True))
    close = []
    for other in others:
        shared = [(by_seed[s], v) for s, v in zip(other["seeds"], other["scores"], strict=True) if s in by_seed]
        if not shared or not all(mine < theirs for mine, theirs in shared):
            close.append(str(other["arm"]))
    if close:
        return said + Markup(" In at least one seed it is not below: {}.").format(words.listing(close))
    return said + Markup(" In each seed it is below every other arm; the next mean is {}’s, {}.").format(
        others[0]["arm"], words.loss(others[0]["score"])
    )


def _gap(mean: float, metric: summary.Metric, scratch: str) -> str:
    """A difference to scratch in words; one that rounds to nothing has no side."""
    text = words.signed(mean)
    if not text.strip("0."):
        return f"level with {scratch} to four decimals"
    return f"{words.loss(abs(mean))} {metric.spoken} {'below' if mean < 0 else 'above'} {scratch}"


def _beside(compared: pd.DataFrame, column: str, heading: str, metric: summary.Metric) -> Markup:
    """The grown arms against scratch: how many end lower, the best of them, and for which no value can be given."""
    means = summary.mean_difference(compared, column).dropna().sort_values()
    without = compared[~compared["arm"].isin(means.index) & compared[column].isna()].drop_duplicates("arm")
    notes = [
        f"{arm} ({note or 'no run from scratch'})" for arm, note in zip(without["arm"], without["note"], strict=True)
    ]
    start = Markup("<strong>{}</strong>").format(heading)
    if means.empty:
        return start + Markup(", no value can be given for {}.").format(words.listing(notes))
    first = str(means.index[0])
    own = compared.loc[compared["arm"] == first, "own_shape"].iloc[0]
    scratch = "scratch of its own shape" if own else "scratch"
    each = list(compared.loc[(compared["arm"] == first) & compared["scored"], column].dropna())
    said = start + Markup(", {} in the mean. The lowest is {}, {} ({}).").format(
        _ended(means, "lower"), first, _gap(float(means.iloc[0]), metric, scratch), _spread(each, words.signed)
    )
    if len({value < 0 for value in each}) > 1:
        said += Markup(" Its seeds disagree on the sign.")
    if notes:
        said += Markup(" No value is given for {}.").format(words.listing(notes))
    return said


def _midway(mine: pd.DataFrame, metric: summary.Metric) -> Iterable[Markup]:
    """The same at each rung that arms leave again by growing further."""
    for rung, budget, arms in summary.stops(summary.contenders(summary.beside_scratch(mine))):
        at = f"On the way, at rung {rung} after {words.count(budget)} tokens"
        if arms["scratch"].isna().all():
            yield Markup("<strong>{}</strong>, there is no from-scratch run to compare with.").format(at)
        else:
            scratch = words.loss(arms.groupby("seed")["scratch"].first().mean())
            yield _beside(arms, "difference", f"{at}, where scratch of that size ends at {scratch}", metric)
            yield from _shapes(arms, metric)


def _ungrown(mine: pd.DataFrame, metric: summary.Metric) -> Iterable[Markup]:
    """The source trained on, at equal tokens and where it was given more, and how many grown arms end lower."""
    others = summary.others(mine)
    records = summary.by_arm(others[summary.ungrown(others)])
    scores = summary.contenders(summary.grown(mine)).groupby("arm")["score"].mean()
    for arm in summary.unique(record["arm"] for record in records):
        ends = sorted((r for r in records if r["arm"] == arm), key=lambda r: int(r["budget"]))
        said = Markup("<strong>Without growing</strong>, the source trained on ({}, {} weights) ends at ").format(
            arm, words.count(ends[0]["params_non_embedding"])
        )
        parts = [
            f"{words.loss(r['score'])} {metric.spoken} after {words.count(r['budget'])} tokens for "
            f"{words.flops(r['flops'])}" + (f" ({_ended(scores - r['score'], 'lower')})" if len(scores) else "")
            for r in ends
        ]
        yield said + words.listing(parts) + "."


def _between(last: pd.DataFrame) -> Iterable[Markup]:
    for task in summary.unique(last["task"]):
        mine = last[last["task"] == task]
        records = summary.by_arm(summary.baseline(mine[mine["ranked"]]))
        if len(records) > 1:
            parts = [
                f"{r['architecture']} {words.loss(r['score'])} ({words.count(r['params_non_embedding'])} weights)"
                for r in records
            ]
            spoken = summary.metric(mine).spoken
            yield Markup("From scratch on {}, {}: {}.").format(task, spoken, words.listing(parts))


def sterile(last: pd.DataFrame) -> list[str]:
    """Each control whose added capacity cannot learn, with the reason."""
    marked = last[last["sterile"].fillna("") != ""].drop_duplicates("arm")
    return [f"{arm}: {why}" for arm, why in zip(marked["arm"], marked["sterile"], strict=True)]


def spending(stages: pd.DataFrame) -> str:
    """What the study spent and what sharing saved."""
    if stages.empty:
        return "No stage has been recorded yet."
    spent = summary.spent(stages)
    real, alone, apart = (float(spent[column].sum()) for column in ("flops", "flops_unshared", "flops_eval"))
    saved = (
        f", {words.percent(1 - real / alone)} less than the {words.flops(alone)} had no two arms shared a stage"
        if alone
        else ""
    )
    return (
        f"The study spent {words.flops(real)} on {words.plural(len(stages), 'distinct stage')}{saved}. Arms share what "
        "they have in common, such as the source model. The larger sum counts a stage once for every arm that passes "
        "it: one trunk as far as the arm’s last budget point, and a cooldown at each point. (growbench plan sums the "
        "whole path of every budget point as “flops unshared”, trunk and all, which is more.) Evaluation took "
        f"{words.flops(apart)} more. An arm’s cost, in the second table, is the sum along its path to the full budget."
    )


def again(rows: pd.DataFrame, provenance: Mapping[str, Any]) -> Markup:
    """How to run one row of the tables again."""
    if rows.empty:
        return Markup("There is no row yet.")
    ranked = summary.grown(rows)
    row = (ranked if len(ranked) else rows).iloc[0]
    sha = provenance.get("git_sha")
    at = Markup("At commit <code>{}</code>, ").format(sha) if sha else Markup("The commit is not recorded. There, ")
    dirty = " The code of this study also had uncommitted changes." if provenance.get("git_dirty") else ""
    return at + Markup(
        "<code>{} --out FOLDER</code> runs one arm with all its seeds and budget points in a new folder; for another "
        "row put its arm there. Where the command under Provenance names a study file, --seeds or --plugin, give these "
        "again. For differences to scratch leave --only away: they need the arm from scratch too.{}"
    ).format(words.command(row["study"], row["arm"]), dirty)


def failing(rows: pd.DataFrame, stages: pd.DataFrame) -> str:
    """How much did not end well."""
    bad, broken = int((~rows["scored"]).sum()), int((stages["status"] != "ok").fillna(True).sum())
    said = "Every run that is recorded here finished."
    if bad or broken:
        said = (
            f"{words.plural(bad, 'result row')} of {len(rows):,} and {words.plural(broken, 'stage')} did not end well. "
            "They are listed in full, and scored as the uniform predictor."
        )
    restarts = int(stages["restarts"].sum()) if len(stages) else 0
    return f"{said} Stages were restarted {words.plural(restarts, 'time')} by the engine." if restarts else said
