"""What claims rest on: a study's tables, and which of their arms are made how."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import pandas as pd

from growbench import stats
from growbench.results import PLANNED, UNSCORED

KEY = ["task", "seed"]
VIEWS = {"total": "flops", "continued": "flops_continued", "ladder": "flops_ladder"}
"""The columns of the three views of cost: everything counted, the source free, owning every rung."""


class Lacking(ValueError):
    """What a test needs is not in the evidence; the sentence says what."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A study's tables, as claims read them: columns as in `growbench.results`.

    memory: names of the tasks that validate on what they train on, and may read it more than once; planned: the rows
    that results are to have (arm, task, seed, budget, probe), so that a study under way is known to be one.
    """

    results: pd.DataFrame
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    diagnostics: pd.DataFrame = field(default_factory=pd.DataFrame)
    memory: frozenset[str] = frozenset()
    planned: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=PLANNED))

    def copy(self) -> "Evidence":
        """The same with tables of its own: what is done to them stays in them."""
        names = "results", "curves", "diagnostics", "planned"
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    @cached_property
    def language(self) -> "Evidence":
        """The evidence without the tasks that ask for one capacity alone. Lacking where none is left."""
        left = self.results[~self.results["probe"].fillna(False).astype(bool)]
        if left.empty:
            raise Lacking("a task that is no capacity probe")
        return replace(self, results=left, planned=self.planned[~self.planned["probe"].astype(bool)])

    def task(self, name: str) -> "Evidence":
        """The evidence of the tasks made by one plugin. Lacking where there is none."""
        own, planned = (
            frame[frame["task"].astype(str).str.extract(r"^([^(:]*)", expand=False) == name]
            for frame in (self.results, self.planned)
        )
        if own.empty:
            raise Lacking(f"the task {name}")
        return replace(self, results=own, planned=planned)

    @cached_property
    def budget(self) -> int:
        """The study's full budget, in tokens."""
        return stats.full_budget(self.results)

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The results in the columns that comparisons read: a tenth of the table, and of the time."""
        return self.results[[*KEY, "arm", "rung", "status", "loss", *stats.EQUAL, "tuned", "epochs", *VIEWS.values()]]

    @cached_property
    def made(self) -> pd.DataFrame:
        """How the arms of the study's own schedule are made, a row per arm in the order of the table.

        From scratch, an arm is of the ladder's own shape: those in which restricted growth ends are left out.
        """
        text = ["strategy", "variant", "restriction", "placement", "nonlinearity"]
        rows = self.results[[*text, "arm", "architecture", "shape", "rung", "schedule"]]
        rows = rows[rows["schedule"].fillna("") == ""]
        last = rows.sort_values("rung", kind="stable").drop_duplicates("arm", keep="last").set_index("arm")
        last = last.loc[rows["arm"].drop_duplicates()].reset_index()
        last[text] = last[text].fillna("")
        ends = list(zip(last["architecture"], last["shape"], strict=True))
        restricted = {end for end, parts in zip(ends, last["restriction"], strict=True) if parts}
        own = [s != "scratch" or end not in restricted for s, end in zip(last["strategy"], ends, strict=True)]
        return last[own].assign(top=last[own].groupby("architecture")["rung"].transform("max"))

    def arms(
        self,
        strategy: str,
        *,
        variant: str = "",
        restriction: str = "",
        placement: str | None = None,
        nonlinearity: str | None = None,
        rung: Literal["first", "last"] = "last",
    ) -> list[str]:
        """Names of the arms of the study's own schedule that are so made, in the order of the table."""
        rows = self.made
        wanted = {"strategy": strategy, "variant": variant, "restriction": restriction}
        for column, value in (wanted | {"placement": placement, "nonlinearity": nonlinearity}).items():
            if value is not None:
                rows = rows[rows[column] == value]
        return [str(name) for name in rows.loc[rows["rung"] == (rows["top"] if rung == "last" else 0), "arm"]]

    def arm(self, strategy: str, **made: str) -> str:
        """The first arm that is so made (see `arms`). Lacking where there is none."""
        (found,) = self.together({"strategy": strategy} | made)
        return found

    def together(self, *made: Mapping[str, str], **common: str) -> list[str]:
        """Arms that are so made (see `arms`), all of one architecture: the first that has them. Lacking where none has.

        common: what holds of each of them.
        """
        each = [self.arms(**{**common, **own}) for own in made]  # type: ignore[arg-type]
        words = [_words({**common, **own}) for own in made]
        if gone := [said for said, found in zip(words, each, strict=True) if not found]:
            raise Lacking(f"an arm of {' and one of '.join(gone)}")
        of = self.made.set_index("arm")["architecture"]
        for architecture in dict.fromkeys(of):
            chosen = [next((arm for arm in found if of[arm] == architecture), "") for found in each]
            if all(chosen):
                return chosen
        raise Lacking(f"one architecture with arms of {', '.join(words)}")

    def scratch(self, arm: str) -> str:
        """The from-scratch arm of an arm's architecture, size and shape. Lacking where there is none."""
        mine = self.rows(arm).iloc[-1]
        same = ["architecture", "shape", "rung"]
        rows = self.results[(self.results["strategy"] == "scratch") & (self.results[same] == mine[same]).all(axis=1)]
        if rows.empty:
            raise Lacking(f"scratch in the shape of {arm}")
        return str(rows["arm"].iloc[0])

    def rows(self, arm: str) -> pd.DataFrame:
        """All rows of an arm at its last rung. Lacking where there is none."""
        rows = self.results[self.results["arm"] == arm]
        if rows.empty:
            raise Lacking(f"the arm {arm}")
        last: pd.DataFrame = rows[rows["rung"] == rows["rung"].max()]
        return last

    def final(self, arm: str) -> pd.DataFrame:
        """The rows of an arm at the study's full budget. Lacking where there is none, or two of one task and seed."""
        rows = self.rows(arm)
        rows = rows[(rows["budget"] == self.budget).fillna(False).astype(bool)]
        if rows.empty:
            raise Lacking(f"{arm} at the full budget of {self.budget:,} tokens")
        try:
            return stats.at_budget(self.results, rows)
        except ValueError as error:
            raise Lacking(f"a fair comparison: {error}") from None

    @cached_property
    def _ahead(self) -> pd.DataFrame:
        """The rows that are planned and not there."""
        if self.planned.empty:
            return self.planned
        planned, there = (
            list(frame[PLANNED[:-1]].itertuples(index=False, name=None)) for frame in (self.planned, self.results)
        )
        done = set(there)
        return self.planned.loc[[row not in done for row in planned]]

    def unmet(self, arms: Collection[str], *, points: bool = False) -> str:
        """Which of a study's rules these arms break at the full budget, or at all budget points; "" where none."""
        rows = self.compared[self.compared["arm"].isin(arms)]
        if not points:
            rows = rows[(rows["budget"] == self.budget).fillna(False).astype(bool)]
        said = []
        if len(ahead := self._ahead[self._ahead["arm"].isin(arms)]):
            first = ahead.iloc[0]
            where = f"{first['arm']} at {first['budget']:,} tokens ({first['task']}, seed {first['seed']})"
            said.append(f"not run yet: {where}" + f" and {len(ahead) - 1} rows more" * (len(ahead) > 1))
        if len(bad := rows[rows["status"].isin(UNSCORED)].drop_duplicates(["arm", "task", "seed"])):
            runs = [f"{r['arm']} {r['status']} ({r['task']}, seed {r['seed']})" for r in bad.to_dict("records")]
            said.append(", ".join(runs[:3]) + f" and {len(runs) - 3} more" * (len(runs) > 3))
        if not rows["tuned"].fillna(False).astype(bool).all():
            said.append("the study is not tuned")
        again = rows[(rows["epochs"] > 1).fillna(False).astype(bool) & ~rows["task"].isin(self.memory)]
        for task, epochs in again.groupby("task", sort=False)["epochs"].max().items():
            said.append(f"{task} was read {epochs:.2g} times")
        return "; ".join(said)


def _words(made: Mapping[str, str]) -> str:
    """zero_pad (restriction [ffn], placement ffn)."""
    own = ", ".join(f"{key} {value}" for key, value in made.items() if value and key != "strategy")
    return made["strategy"] + f" ({own})" * bool(own)
