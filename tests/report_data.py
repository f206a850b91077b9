"""Plausible results without training: every column of growbench.results, drawn from closed forms and a seed."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from growbench.claim import CLAIMS, TESTS
from growbench.results import CURVES, DIAGNOSTICS, RESULTS, STAGES, Column

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img onerror=alert(2) src=x>'
BUDGET, GROWTH, POINTS, COOLDOWN = 480_000, 240_000, (300_000, 360_000, 480_000), 0.1
UNIFORM = float(np.log(256))
SIZES = {"transformer": (8_192, 24_576), "tokenformer": (8_200, 24_600)}
SHAPES = {
    ("transformer", ""): "2 layers, residual 32, heads 4, key 8, value 8, ffn 128",
    ("transformer", "source"): "2 layers, residual 16, heads 2, key 8, value 8, ffn 64",
    ("transformer", "ffn"): "2 layers, residual 16, heads 2, key 8, value 8, ffn 320",
    ("transformer", "layers 1"): "2 layers, residual 16, heads 2, key 8, value 8, ffn 64/576",
    ("tokenformer", ""): "2 layers, residual 32, heads 4, key 8, value 8, ffn 160, tokens 12",
    ("tokenformer", "source"): "2 layers, residual 32, heads 4, key 8, value 8, ffn 32, tokens 4",
}

STUDY = """\
study: quick
about: What does growing a small model save, and what does it cost? <script>alert(1)</script>
tasks: [pycode]
seeds: 3
parametrization: mup
ladders:
  transformer:
    - {layers: 2, residual: 16, heads: 2, key: 8, value: 8, ffn: 64}
    - {layers: 2, residual: 32, heads: 4, key: 8, value: 8, ffn: 128}
  tokenformer:
    - {layers: 2, residual: 32, heads: 4, key: 8, value: 8, placement: everywhere, tokens: 4, ffn: 32}
    - {layers: 2, residual: 32, heads: 4, key: 8, value: 8, placement: everywhere, params: 24576}
strategies: [scratch, continue, zero_pad, {name: zero_pad, only: ffn}, net2net, orthogonal, lora, zero_tokens]
budget: {tokens: 480000, split: [0.5], points: [0.625, 0.75, 1.0], cooldown: 0.1}
"""


@dataclass(frozen=True, kw_only=True)
class Arm:
    strategy: str
    label: str = ""  # instead of the strategy's name
    variant: str = ""
    only: str = ""  # where growth was allowed, or the shape of a scratch twin
    offset: float = 0.0  # nats above scratch at the full budget
    jump: float = 0.0
    alive: float = 0.5
    matched: bool = True
    sterile: str = ""
    status: str = "ok"  # of seed 0
    added: float = 1.0  # share of the weights that matched growth adds


ARMS = {
    "transformer": (
        Arm(strategy="scratch", label="scratch@0", offset=0.07, added=0.0),
        Arm(strategy="scratch"),
        Arm(strategy="continue", offset=0.055, matched=False, added=0.0),
        Arm(strategy="zero_pad", offset=0.031, alive=0.88),
        Arm(strategy="zero_pad", variant="scale=true", offset=0.033, alive=0.87),
        Arm(strategy="zero_pad", variant="fill=two_sided", offset=0.060, alive=0.0, sterile="reads and writes zero"),
        Arm(strategy="net2net", offset=0.041, alive=0.21),
        Arm(strategy="net2net", variant="noise=0", offset=0.058, alive=0.0, sterile="clones share a gradient"),
        Arm(strategy="orthogonal", offset=0.037, jump=1e-15, alive=0.9),
        Arm(strategy="lora", variant="rank=4", offset=0.049, matched=False, added=0.2),
        Arm(strategy="spike", offset=0.05, status="diverged"),
        Arm(strategy=IMAGE, variant=SCRIPT, offset=0.045),
        Arm(strategy="zero_pad", only="ffn", offset=0.04, alive=0.8),
        Arm(strategy="scratch", only="ffn", offset=0.052),
    ),
    "tokenformer": (
        Arm(strategy="scratch", label="scratch@0", offset=0.08, added=0.0),
        Arm(strategy="scratch", offset=0.008),
        Arm(strategy="continue", offset=0.065, matched=False, added=0.0),
        Arm(strategy="zero_tokens", offset=0.077),
        Arm(strategy="zero_tokens", variant="factor=rescaled", offset=0.078, jump=0.41),
        Arm(strategy="zero_tokens", variant="values=zero", offset=0.08, alive=0.0, sterile="GELU(0) = 0: no gradient"),
        Arm(strategy="random_tokens", offset=0.09, jump=0.63, status="blocked"),
        Arm(strategy="lora", variant="rank=4", offset=0.06, matched=False, added=0.2),
    ),
}


def _name(arm: Arm, architecture: str) -> str:
    return f"{architecture}/{arm.label or arm.strategy}" + "".join(
        f"[{part}]" for part in (arm.variant, arm.only) if part
    )


def _trunk(tokens: float, floor: float = 1.2) -> float:
    """Loss at constant rate: from the uniform predictor's at no token towards a floor, as a power of tokens."""
    return floor + (UNIFORM - floor) * float((1 + tokens / 2_000) ** -0.36)


def _frame(rows: list[dict[str, Any]], columns: dict[str, Column]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: column.dtype for name, column in columns.items()})


@dataclass(kw_only=True)
class _Path:
    """One arm and seed: its trunk, grown once at GROWTH unless it has no source, and a cooldown at each point."""

    arm: Arm
    architecture: str
    seed: int
    luck: float
    stages: dict[str, dict[str, Any]]
    task: str
    unit: str

    @property
    def name(self) -> str:
        return _name(self.arm, self.architecture)

    @property
    def status(self) -> str:
        return self.arm.status if self.seed == 0 else "ok"

    @property
    def reason(self) -> str:
        said = {"diverged": f"loss not finite at token 260,096 in {SCRIPT}", "blocked": "its source failed"}
        return said.get(self.status, "")

    @property
    def scratch(self) -> bool:
        return self.arm.strategy == "scratch"

    @property
    def grows(self) -> bool:
        return self.arm.strategy not in ("scratch", "continue")

    @property
    def before(self) -> int:
        return GROWTH if self.grows else 0

    @property
    def size(self) -> int:
        """Non-embedding weights of the final model."""
        small, large = SIZES[self.architecture]
        return small + int(self.arm.added * (large - small))

    @property
    def shape(self) -> str:
        rank = ", rank 4" if self.arm.strategy == "lora" else ""
        return SHAPES[self.architecture, self.arm.only if self.arm.added == 1.0 else "source"] + rank

    @property
    def points(self) -> tuple[int, ...]:
        extra = {"scratch": (240_000, 320_000), "continue": (960_000,)}
        return tuple(sorted((*POINTS, *extra.get(self.arm.strategy, ()))))

    def cost(self, tokens: int) -> float:
        small = SIZES[self.architecture][0]
        return 6.0 * (self.size * max(tokens - self.before, 0) + small * min(tokens, self.before))

    def rung(self, grown: bool) -> int:
        return int(grown if self.grows else self.arm.added == 1.0)

    def stage(self, name: str, kind: str, tokens: int, flops: float, status: str = "ok") -> str:
        if name in self.stages:
            self.stages[name]["arms"] += self.seed == self.stages[name]["seed"]
            return name
        self.stages[name] = {
            "stage": name, "kind": kind, "status": status, "reason": self.reason if status != "ok" else "",
            "task": self.task, "seed": self.seed, "arms": 1, "tokens": tokens, "flops": flops,
            "flops_eval": flops * 0.05, "wall_s": flops / 5e9, "restarts": 0, "started": "2026-01-02T03:04:05Z",
        }  # fmt: skip
        return name

    def measure(self, stage: str, kind: str, tokens: int, loss: float, grown: bool) -> dict[str, Any]:
        return {
            "arm": self.name, "task": self.task, "seed": self.seed, "kind": kind, "stage": stage,
            "rung": self.rung(grown), "budget": tokens if kind == "cooldown" else None, "tokens": tokens,
            "flops": self.cost(tokens), "loss": loss, "train_loss": loss + 0.02, "learning_rate": 0.01,
        }  # fmt: skip

    def curve(self) -> list[dict[str, Any]]:
        """The trunk to the last branch, and each cooldown's end; what diverged or was blocked ends early."""
        large = self.arm.added == 1.0 and self.scratch
        source = f"{self.architecture}-{f'scratch{self.arm.only}' if large else 'source'}-{self.seed}"
        self.stage(f"{source}-init", "init", 0, 0.0)
        last = round(0.9 * self.points[-1]) if self.status == "ok" else 240_000 if self.status == "blocked" else 250_000
        own = f"{self.name}-{self.seed}"
        if self.grows and self.status != "blocked":
            self.stage(own, "train", last - GROWTH, self.cost(last) - self.cost(GROWTH), self.status)
        rows = []
        for tokens in range(0, last + 1, 30_000):
            grown = self.grows and tokens > GROWTH
            slow = 0.08 * (1 - self.arm.added if not self.grows else not grown) * min(tokens, GROWTH) / GROWTH
            loss = _trunk(tokens) + 0.05 * (tokens > 0) + slow + self.luck
            if grown:
                loss += self.arm.offset + self.arm.jump * float(np.exp(-(tokens - GROWTH) / 40_000))
            rows.append(self.measure(own if grown else source, "train", tokens, loss, grown))
            if self.grows and tokens == GROWTH and self.status != "blocked":
                grow = self.stage(f"{own}-grow", "grow", 0, 2e6)
                rows.append(self.measure(grow, "train", tokens, loss + self.arm.jump, True))
        self.stage(source, "train", GROWTH, self.cost(GROWTH))
        for point in self.points if self.status == "ok" else ():
            spent = round(COOLDOWN * point)
            cooled = self.stage(f"{own}-{point}", "cooldown", spent, self.cost(point) - self.cost(point - spent))
            rows.append(self.measure(cooled, "cooldown", point, self.loss(point), True))
        return rows

    def loss(self, point: int) -> float:
        return (
            _trunk(point) + self.arm.offset * min(1.0, point / BUDGET) ** 2 + self.luck
            if self.status == "ok"
            else UNIFORM
        )

    def result(self, point: int) -> dict[str, Any]:
        size, grown, arm = self.size, self.grows or None, self.arm
        tokens = {"ok": point, "diverged": min(point, 260_096), "blocked": 0}[self.status]
        flops, loss, small = self.cost(tokens), self.loss(point), SIZES[self.architecture][0]
        source = self.cost(self.before) if tokens else 0.0
        return {
            "study": "quick", "arm": self.name, "strategy": arm.strategy, "variant": arm.variant,
            "architecture": self.architecture, "rung": self.rung(True), "shape": self.shape, "task": self.task,
            "unit": self.unit, "seed": self.seed, "status": self.status, "reason": self.reason, "matched": arm.matched,
            "sterile": arm.sterile, "preserves": "function", "growth_steps": int(self.grows), "parametrization": "mup",
            "learning_rate": 0.01, "tuned": False, "dtype": "float32", "device": "cpu", "data_fingerprint": "9f2c" * 16,
            "params": size + 16_384, "params_non_embedding": size, "params_added": size - small if self.grows else 0,
            "params_target": SIZES[self.architecture][int(arm.label != "scratch@0")], "budget": point, "tokens": tokens,
            "tokens_source": self.before if tokens else 0, "tokens_probe": 0, "tokens_per_param": tokens / size,
            "epochs": tokens / 4e6, "flops": flops, "flops_source": source, "flops_continued": flops - source,
            "flops_ladder": flops * (1.02 if self.grows else 1 + small / size if arm.added else 1.0),
            "flops_cooldown": self.cost(tokens) - self.cost(round(0.9 * tokens)), "flops_growth": 2e6 * self.grows,
            "flops_probe": 0.0, "flops_eval": 3e9, "flops_tuning": 0.0, "loss": loss,
            "bits_per_byte": loss / np.log(2) if self.unit == "byte" else None,
            "excess_loss": loss - 1.0 if self.unit == "symbol" else None, "growth_gap": grown and 4e-6 + arm.jump,
            "growth_loss_jump": grown and arm.jump, "alive_share": grown and arm.alive, "wall_s": flops / 5e9,
            "peak_memory_bytes": 410_000_000,
        }  # fmt: skip


def tables(
    seeds: int = 3, arms: dict[str, tuple[Arm, ...]] = ARMS, task: str = "pycode", unit: str = "byte"
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(results, curves, stages) of a two-rung study with one growth at half the budget."""
    noise = np.random.default_rng(0)
    stages: dict[str, dict[str, Any]] = {}
    paths = [
        _Path(
            arm=arm, architecture=architecture, seed=seed, stages=stages, task=task, unit=unit,
            luck=0.003 * seed + 0.004 * float(noise.standard_normal()),
        )
        for architecture, members in arms.items()
        for arm in members
        for seed in range(seeds)
    ]  # fmt: skip
    curves = [row for path in paths for row in path.curve()]
    results = [path.result(point) for path in paths for point in path.points]
    return _frame(results, RESULTS), _frame(curves, CURVES), _frame(list(stages.values()), STAGES)


def three_rungs(
    results: pd.DataFrame, curves: pd.DataFrame, stages: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The same study with a rung more: every grown arm stops at rung 1 after 300,000 tokens, then grows to rung 2."""
    results, curves = results.copy(), curves.copy()
    stop = results[(results["budget"] == 300_000) & (results["rung"] == 1) & (results["strategy"] != "continue")].copy()
    scratch = stop["strategy"] == "scratch"
    stop["arm"] = stop["arm"].where(~scratch, stop["arm"] + "@1")
    results["growth_steps"] = results["growth_steps"] * 2
    results["rung"] = results["rung"] * 2
    grown = ~curves["arm"].str.contains("scratch|continue")
    curves["rung"] = curves["rung"] + ((curves["tokens"] > 300_000) & grown | ~grown & (curves["rung"] == 1))
    return pd.concat([results, stop], ignore_index=True), curves, stages


def provenance() -> dict[str, Any]:
    """As growbench.store.provenance gives it, with hostile text wherever a user or a plugin writes."""
    return {
        "growbench": "0.1.0",
        "git_sha": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": True,
        "command": f"growbench run quick --only '{SCRIPT}'",
        "started": "2026-01-02T03:04:05Z",
        "finished": "2026-01-02T03:07:41Z",
        "packages": {"torch": "2.13.0", "numpy": "2.3.1", IMAGE: SCRIPT},
        "python": "3.11.2",
        "platform": "Linux-6.1-x86_64",
        "cpu": "two cores of something",
        "threads": 1,
        "workers": 2,
        "device": "cpu",
        "seeds": [0, 1, 2],
        "planned_rows": 0,
        "skipped": {f"transformer/{IMAGE}": f"it grows tokens, which this architecture lacks {SCRIPT}"},
        "study": STUDY,
        "strategies": [
            {"name": IMAGE, "origin": f"file {IMAGE}", "summary": SCRIPT, "source": f"{SCRIPT}\n\nA docstring."},
            {"name": "scratch", "origin": "built-in", "summary": "Train the target shape.", "source": "From scratch."},
        ],
        "tasks": [
            {
                "name": "pycode",
                "fingerprint": "9f2c" * 16,
                "train_tokens": 4_000_000,
                "valid_tokens": 400_000,
                "entropy_rate": None,
            }
        ],
    }


def verdicts() -> tuple[pd.DataFrame, pd.DataFrame]:
    """(claims, tests) as of growbench.claim.tabulate: one claim of each verdict, and one that lacks what it needs."""
    claims = [
        ("cost", "Growing is cheaper.", "supported", -0.105, -0.16, -0.05, "FLOPs", "pad is cheaper", 0.0, 1.0, ""),
        ("destination", f"Scratch ends lower. {SCRIPT}", "contradicted", 0.02, 0.015, 0.025, "loss",
         "scratch ends below pad", 1.0, 0.0123, ""),
        ("scale", "Padding disturbs scale.", "undecided", 0.3, -0.1, 0.7, "norm", "norm moved by pad", 0.4, 0.6,
         "a clearer effect"),
        ("capacity", "Growth stores.", "undecided", np.nan, np.nan, np.nan, None, None, np.nan, np.nan,
         "it needs the task rank"),
    ]  # fmt: skip
    tests: list[dict[str, Any]] = []
    for claim, _, _, effect, low, high, measure, test, p_for, p_against, _ in claims[:3]:
        common = {"claim": claim, "test": test, "rows": f"transformer/pad, {IMAGE}", "measure": measure}
        for decides, name in ((True, test), (False, f"{test}, beside")):
            values = {"effect": effect, "low": low, "high": high, "why": ""}
            whole = {"task": "", "n": 5, "p_for": p_for, "p_against": p_against}
            tests += [common | {"decides": decides, "test": name} | values | whole]
            for task in ("pycode", "grammar"):
                tests += [common | {"decides": decides, "test": name} | values | {"task": task, "n": 5}]
    return pd.DataFrame(claims, columns=list(CLAIMS)), pd.DataFrame(tests, columns=list(TESTS))


def screened() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same of a study with too few seeds: no interval, no p, all undecided for one reason."""
    claims, tests = verdicts()
    why = "pycode: screening: 3 seeds, and a test needs 5"
    nothing = dict.fromkeys(("low", "high", "p_for", "p_against"), np.nan)
    return claims.assign(verdict="undecided", missing=why, **nothing), tests.assign(why=why, **nothing)


RATES = (0.002, 0.008, 0.032, 0.128)


def tuned(results: pd.DataFrame) -> dict[str, Any]:
    """As growbench.settings.Tuned gives it: four rates, of which the last diverged; net2net's choice is at the edge."""
    chosen: dict[str, dict[str, Any]] = {}
    trials: list[dict[str, Any]] = []
    for (task, architecture, arm), _ in results.groupby(["task", "architecture", "arm"], sort=False):
        best = 0 if str(arm).endswith("net2net") else 1
        chosen.setdefault(str(task), {})[str(arm)] = {"learning_rate": RATES[best]}
        for trial, rate in enumerate(RATES):
            lost = trial == len(RATES) - 1
            loss = UNIFORM if lost else 2.5 + 0.1 * abs(trial - best)
            trials.append(
                {"task": task, "arm": arm, "architecture": architecture, "trial": trial, "seed": 1_000_000,
                 "learning_rate": rate, "status": "diverged" if lost else "ok", "loss": loss, "flops": 1e9,
                 "chosen": trial == best}
            )  # fmt: skip
    return {"chosen": chosen, "trials": trials, "digest": "ab" * 32}


def diagnostics(results: pd.DataFrame) -> pd.DataFrame:
    """Of every arm at the full budget: ranks, and for grown ones old and new parts at growth and at the end.

    New over old is 0.25 in activations right after growth and 0.5 at the end; the alive share 0.2, then 0.3.
    """
    rows: list[dict[str, Any]] = []
    for own in results[results["budget"] == BUDGET].to_dict("records"):
        grown = bool(own["growth_steps"])
        places = (("grow", "before"), ("grow", "after"), ("cooldown", "end")) if grown else (("cooldown", "end"),)
        for kind, when in places:
            about = {name: own[name] for name in ("arm", "task", "seed")}
            about |= {"kind": kind, "when": when, "tokens": GROWTH if kind == "grow" else BUDGET}
            about |= {"budget": BUDGET if kind == "cooldown" else None}
            parts = ("all",) if when == "before" or not grown else ("all", "old", "new")
            for axis, layer in product(("residual", "ffn"), (0, 1)):
                where = about | {"axis": axis, "layer": layer}
                rows.append(where | {"quantity": "effective_rank", "part": "all", "value": 8.0 + layer})
                for part in parts:
                    value = {"all": 1.0, "old": 2.0, "new": 0.5 if when == "after" else 1.0}[part]
                    rows.append(where | {"quantity": "activation_rms", "part": part, "value": value})
            if grown and when != "before":
                share = {"quantity": "alive_share", "part": "new", "value": 0.2 if when == "after" else 0.3}
                rows.append(about | share)
    return _frame(rows, DIAGNOSTICS)


def coordinates() -> pd.DataFrame:
    """As growbench.coordinates.measure gives it: activations that do not depend on width."""
    rows = [
        {"architecture": "transformer", "parametrization": "mup", "multiple": multiple, "width": 16 * multiple,
         "axis": axis, "layer": 0, "steps": steps, "rms": 1.0, "rms_change": 0.1 if steps else np.nan}
        for multiple, axis, steps in product((1, 2, 4), ("residual", "ffn"), (0, 1))
    ]  # fmt: skip
    return pd.DataFrame(rows)
