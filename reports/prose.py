"""What came out, in plain words: sentences made from numbers, honest where nothing is decided.

One idea: a sentence states a mean, the spread of its seeds, and whether the seeds agree. Every name in it is escaped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from growbench.reports import summary, words

SEEDS_FOR_A_VERDICT = 5


def banners(rows: pd.DataFrame, provenance: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a reader must know before any number: a word and a sentence each."""
    if rows.empty:
        return [{"word": "Empty.", "text": "No result has been written yet."}]
    found = []
    if not rows["tuned"].fillna(False).all():
        found.append({"word": "Untuned.", "text": "The learning rate was not tuned for any arm."})
        if rows["tuned"].fillna(False).any():
            found[-1]["text"] = "The learning rate was tuned for some arms only."
    seeds = words.plural(rows["seed"].nunique(), "seed")
    if rows["seed"].nunique() < SEEDS_FOR_A_VERDICT:
        found.append({"word": f"Screening: {seeds}, no test is shown.", "text": "Points only."})
    else:
        found.append({"word": "No test is shown.", "text": f"Points and mean differences over {seeds}."})
    bad = rows[~rows["scored"]]["arm"].nunique()
    if bad:
        text = f"{words.plural(bad, 'arm')} did not always finish, scored as the uniform predictor: see Failures."
        found.append({"word": "Failures.", "text": text})
    if provenance.get("git_dirty"):
        found.append({"word": "Uncommitted source.", "text": "The code differed from the commit that is named below."})
    return found


def facts(rows: pd.DataFrame, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was asked: tasks, architectures, budget, ladder."""
    full = summary.full_budget(rows)
    points = [words.count(point) for point in sorted({int(b) for b in rows.loc[rows["ranked"], "budget"].dropna()})]
    arms, seeds = rows["arm"].nunique(), rows["seed"].nunique()
    found: list[tuple[str, str]] = [
        ("Tasks", words.listing(summary.unique(rows["task"])) or words.DASH),
        ("Architectures", words.listing(summary.unique(rows["architecture"])) or words.DASH),
        ("Budget of every arm", f"{words.count(full)} tokens" if full else words.DASH),
        ("Budget points", f"{words.listing(points)} tokens" if points else words.DASH),
        ("Arms and seeds", f"{words.plural(arms, 'arm')}, {words.plural(seeds, 'seed')}"),
        ("Parametrisation", words.listing(summary.unique(rows["parametrization"])) or words.DASH),
    ]
    for architecture, rungs in (spec.get("ladders") or {}).items():
        steps = [Markup("<code>{}</code>").format(", ".join(f"{k} {v}" for k, v in rung.items())) for rung in rungs]
        found.append((f"Ladder of {architecture}, smallest first", Markup("<br>").join(steps)))
    return found


def lead(rows: pd.DataFrame) -> str:
    """The whole study in two sentences."""
    if rows.empty:
        return "Nothing can be said yet: there are no results."
    compared = summary.against_scratch(rows)
    if not compared["difference"].notna().any():
        return "Growing cannot be compared with training from scratch yet: one of the two has no finished run."
    tokens, cost = (
        pd.concat([summary.mean_difference(one, column).dropna() for _, one in compared.groupby("task")])
        for column in ("difference", "difference_flops")
    )
    said = f"At equal tokens {_of(tokens)} grown arms at matched size end below from-scratch"
    said += f"; at equal compute, {_of(cost)} do." if len(cost) else "."
    seeds = rows["seed"].nunique()
    if seeds < SEEDS_FOR_A_VERDICT:
        return f"{said} With {words.plural(seeds, 'seed')} these are points, and nothing is decided."
    return f"{said} These are means; no test has been made, and nothing is decided."


def _of(differences: pd.Series) -> str:
    lower, total = int((differences < 0).sum()), len(differences)
    return f"{'none' if lower == 0 else 'all' if lower == total else lower} of {total}"


def answers(rows: pd.DataFrame, cells: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """A title and sentences per task and architecture, then scratch against scratch."""
    found = [{"title": f"{a} on {t}", "sentences": list(_answer(rows, t, a))} for t, a in cells]
    between = list(_between(summary.finals(rows)))
    return [*found, {"title": "Between architectures", "sentences": between}] if between else found


def _answer(rows: pd.DataFrame, task: str, architecture: str) -> Iterable[Markup]:
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    records = summary.by_arm(summary.finals(mine[mine["ranked"]]))
    if not records:
        yield Markup("No arm at matched size has a result at the full budget.")
        return
    yield _lowest(records[0], records[1:])
    compared = summary.against_scratch(mine)
    scratch = summary.by_arm(summary.finals(summary.baseline(mine)))
    if not scratch:
        yield Markup("Without a from-scratch run there is nothing to set the others beside.")
    elif compared.empty:
        yield Markup("No grown arm at matched size can be set beside scratch yet.")
    else:
        yield _beside(
            compared, "difference", f"At equal tokens, where scratch ends at {words.loss(scratch[0]['loss'])}"
        )
        yield _beside(compared, "difference_flops", "At equal FLOPs")
    yield from _ungrown(summary.others(mine), compared)
    sterile = [str(record["arm"]) for record in records if record["sterile"]]
    if sterile:
        yield Markup("Sterile by design, so controls only: {}.").format(words.listing(sterile))
    for record in records:
        if record["unscored"]:
            said = Markup("<strong>{}</strong>: {}; its mean holds the uniform predictor’s loss for each of these.")
            yield said.format(record["arm"], record["status"])


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    return f"seeds {words.span(values, form)}" if len(values) > 1 else "one seed"


def _lowest(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Markup:
    """Which arm ends lowest, and which others its seeds do not separate from it."""
    more = "" if best["bits_per_byte"] is None else f" ({words.loss(best['bits_per_byte'])} bits per byte)"
    if best["excess_loss"] is not None:
        more += f", {words.loss(best['excess_loss'])} above the source’s entropy rate"
    said = Markup("<strong>{}</strong> ends lowest at the full budget: {} nats per token{}, {}.").format(
        best["arm"], words.loss(best["loss"]), more, _spread(best["losses"], words.loss)
    )
    by_seed = dict(zip(best["seeds"], best["losses"], strict=True))
    close = []
    for other in others:
        shared = [(by_seed[s], v) for s, v in zip(other["seeds"], other["losses"], strict=True) if s in by_seed]
        if not shared or not all(mine < theirs for mine, theirs in shared):
            close.append(str(other["arm"]))
    if not others:
        return said + Markup(" It is the only arm at matched size.")
    if len(best["losses"]) < 2:
        return said + Markup(" One seed says nothing about how stable this order is.")
    if close:
        return said + Markup(" Not below these in every seed, so not separated from them: {}.").format(
            words.listing(close)
        )
    return said + Markup(" In each seed it is below every other arm; next is {} at {}.").format(
        others[0]["arm"], words.loss(others[0]["loss"])
    )


def _beside(compared: pd.DataFrame, column: str, heading: str) -> Markup:
    """The grown arms against scratch: how many end lower, the best of them, and for which no value can be given."""
    means = summary.mean_difference(compared, column).dropna().sort_values()
    without = compared[~compared["arm"].isin(means.index) & compared[column].isna()].drop_duplicates("arm")
    notes = [
        f"{arm} ({note or 'no run from scratch'})" for arm, note in zip(without["arm"], without["note"], strict=True)
    ]
    start = Markup("<strong>{}</strong>").format(heading)
    if means.empty:
        return start + Markup(", no value can be given for {}.").format(words.listing(notes))
    first, mean = str(means.index[0]), float(means.iloc[0])
    each = list(compared.loc[(compared["arm"] == first) & compared["scored"], column].dropna())
    said = start + Markup(", {} grown arms end lower. The lowest is {}, {} nats per token {} scratch ({}).").format(
        _of(means), first, words.loss(abs(mean)), "below" if mean < 0 else "above", _spread(each, words.signed)
    )
    if len({value < 0 for value in each}) > 1:
        said += Markup(" The seeds disagree on its sign, so this decides nothing.")
    if notes:
        said += Markup(" No value is given for {}.").format(words.listing(notes))
    return said


def _ungrown(others: pd.DataFrame, compared: pd.DataFrame) -> Iterable[Markup]:
    """The source trained on, at equal tokens and where it was given more, and how many grown arms end lower."""
    records = summary.by_arm(others[(others["strategy"] == "continue").fillna(False)])
    losses = compared.groupby("arm")["loss"].mean()
    for arm in summary.unique(record["arm"] for record in records):
        ends = sorted((r for r in records if r["arm"] == arm), key=lambda r: int(r["budget"]))
        said = Markup("<strong>Without growing</strong>, the source trained on ({}, {} weights) ends at ").format(
            arm, words.count(ends[0]["params_non_embedding"])
        )
        parts = [
            f"{words.loss(r['loss'])} after {words.count(r['budget'])} tokens for {words.flops(r['flops'])}"
            + (f" ({_of(losses - r['loss'])} grown arms end lower)" if len(losses) else "")
            for r in ends
        ]
        yield said + words.listing(parts) + "."


def _between(last: pd.DataFrame) -> Iterable[Markup]:
    for task in summary.unique(last["task"]):
        records = summary.by_arm(summary.baseline(last[last["task"] == task]))
        if len(records) > 1:
            parts = [
                f"{r['architecture']} {words.loss(r['loss'])} ({words.count(r['params_non_embedding'])} weights)"
                for r in records
            ]
            yield Markup("From scratch on {}, nats per token: {}.").format(task, words.listing(parts))


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
        f", {words.percent(1 - real / alone)} less than the {words.flops(alone)} of paying every path alone"
        if alone
        else ""
    )
    return (
        f"The study spent {words.flops(real)} on {words.plural(len(stages), 'distinct stage')}{saved}: arms share what "
        f"they have in common, such as the source model. Evaluation took {words.flops(apart)} more. An arm’s cost, in "
        "the second table, is the sum along its own path."
    )


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
