"""Plausible results without training: every column of growbench.results, drawn from closed forms and a seed."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from growbench.results import CURVES, RESULTS, STAGES, Column

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img onerror=alert(2) src=x>'
BUDGET, GROWTH, POINTS, COOLDOWN = 480_000, 240_000, (300_000, 360_000, 480_000), 0.1
UNIFORM = float(np.log(256))
SIZES = {"transformer": (8_192, 24_576), "tokenformer": (8_200, 24_600)}

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
strategies: [scratch, continue, zero_pad, net2net, orthogonal, lora, zero_tokens]
budget: {tokens: 480000, split: [0.5], points: [0.625, 0.75, 1.0], cooldown: 0.1}
"""


@dataclass(frozen=True, kw_only=True)
class Arm:
    strategy: str
    variant: str = ""
    offset: float = 0.0  # nats above scratch at the full budget
    jump: float = 0.0
    alive: float = 0.5
    matched: bool = True
    sterile: str = ""
    status: str = "ok"  # of seed 0
    added: float = 1.0  # share of the weights that matched growth adds


ARMS = {
    "transformer": (
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
    ),
    "tokenformer": (
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
    return f"{architecture}/{arm.strategy}" + (f"[{arm.variant}]" if arm.variant else "")


def _decay(tokens: float, floor: float = 1.2) -> float:
    """Loss of the trunk: from the uniform predictor's at no token towards a floor, as a power of tokens."""
    return floor + (UNIFORM - floor) * float((1 + tokens / 2_000) ** -0.36)


def _cost(tokens: int, *, size: int, small: int, before: int) -> float:
    return 6.0 * (size * max(tokens - before, 0) + small * min(tokens, before))


def _frame(rows: list[dict[str, object]], columns: dict[str, Column]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: column.dtype for name, column in columns.items()})


def tables(
    seeds: int = 3, arms: dict[str, tuple[Arm, ...]] = ARMS, task: str = "pycode", unit: str = "byte"
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(results, curves, stages) of a two-rung study with one growth at half the budget."""
    noise = np.random.default_rng(0)
    results: list[dict[str, object]] = []
    curves: list[dict[str, object]] = []
    stages: dict[str, dict[str, object]] = {}

    def stage(name: str, kind: str, seed: int, tokens: int, flops: float, status: str = "ok", reason: str = "") -> str:
        if name in stages:
            stages[name]["arms"] += 1  # type: ignore[operator]
        else:
            stages[name] = {
                "stage": name,
                "kind": kind,
                "status": status,
                "reason": reason,
                "task": task,
                "seed": seed,
                "arms": 1,
                "tokens": tokens,
                "flops": flops,
                "flops_eval": flops * 0.05,
                "wall_s": flops / 5e9,
                "restarts": 0,
                "started": "2026-01-02T03:04:05Z",
            }
        return name

    for architecture, members in arms.items():
        small, large = SIZES[architecture]
        for arm in members:
            name = _name(arm, architecture)
            scratch, grows = arm.strategy == "scratch", arm.strategy not in ("scratch", "continue")
            size = large if scratch or arm.matched else small + int(arm.added * (large - small))
            for seed in range(seeds):
                luck = 0.004 * noise.standard_normal() + 0.003 * seed
                bad = arm.status if seed == 0 else "ok"
                reason = {"diverged": f"loss not finite at token 260,096 in {SCRIPT}", "blocked": "its source failed"}
                before = 0 if scratch else GROWTH
                cost = partial(_cost, size=size, small=small, before=before)
                first = f"{architecture}-{'large' if scratch else 'small'}-{seed}"
                stage(f"{first}-init", "init", seed, 0, 0.0)
                if not scratch:
                    stage(first, "train", seed, GROWTH, cost(GROWTH))
                if grows and bad != "blocked":
                    stage(f"{name}-{seed}-grow", "grow", seed, 0, 2e6)
                own = first if scratch else f"{name}-{seed}-trunk"
                stop = BUDGET if bad == "ok" else 0 if bad == "blocked" else 260_096
                if stop:
                    stage(own, "train", seed, stop - before, cost(stop) - cost(before), bad, reason.get(bad, ""))
                # trunk
                for tokens in range(0, BUDGET + 1, 30_000):
                    if tokens > stop or (tokens > before and bad == "blocked"):
                        break
                    after = grows and tokens > GROWTH
                    gone = max(tokens - GROWTH, 0) / GROWTH
                    shift = arm.offset * gone + (arm.jump * np.exp(-8 * gone) - 0.1 * (1 - gone)) * after
                    slow = 0.06 * min(tokens, GROWTH) / GROWTH * (not scratch) * (1 - 0.9 * gone)
                    curves.append(
                        {
                            "arm": name,
                            "task": task,
                            "seed": seed,
                            "kind": "train",
                            "stage": own if tokens > before or scratch else first,
                            "rung": 1 if scratch or after else 0,
                            "tokens": tokens,
                            "flops": cost(tokens),
                            "loss": _decay(tokens) + shift * (grows or not scratch) + slow + luck + 0.05 * (tokens > 0),
                            "train_loss": _decay(tokens) + 0.02,
                            "learning_rate": 0.01,
                        }
                    )
                for point in POINTS:
                    loss = _decay(point) + arm.offset * (point / BUDGET) ** 2 + luck
                    if bad == "ok":
                        stage(
                            f"{name}-{seed}-cool-{point}",
                            "cooldown",
                            seed,
                            int(point * COOLDOWN),
                            cost(point) * COOLDOWN,
                        )
                        curves.append(
                            {
                                "arm": name,
                                "task": task,
                                "seed": seed,
                                "kind": "cooldown",
                                "stage": f"{name}-{seed}-cool-{point}",
                                "rung": 0 if arm.strategy == "continue" else 1,
                                "budget": point,
                                "tokens": point,
                                "flops": cost(point),
                                "loss": loss,
                                "train_loss": loss + 0.02,
                                "learning_rate": 0.0,
                            }
                        )
                    else:
                        loss = UNIFORM
                    known = bad != "blocked"
                    flops = cost(point) if known else None
                    results.append(
                        {
                            "study": "quick",
                            "arm": name,
                            "strategy": arm.strategy,
                            "variant": arm.variant,
                            "architecture": architecture,
                            "rung": 0 if arm.strategy == "continue" else 1,
                            "task": task,
                            "unit": unit,
                            "seed": seed,
                            "status": bad,
                            "reason": reason.get(bad, ""),
                            "matched": arm.matched,
                            "sterile": arm.sterile,
                            "preserves": "function",
                            "growth_steps": int(grows),
                            "parametrization": "mup",
                            "learning_rate": 0.01,
                            "tuned": False,
                            "dtype": "float32",
                            "device": "cpu",
                            "data_fingerprint": "9f2c" * 16,
                            "params": size + 16_384,
                            "params_non_embedding": size if known else None,
                            "params_added": size - small if grows else 0,
                            "params_target": large,
                            "budget": point,
                            "tokens": point if known else None,
                            "tokens_source": before,
                            "tokens_probe": 0,
                            "tokens_per_param": point / size,
                            "epochs": point / 4e6,
                            "flops": flops,
                            "flops_source": cost(before),
                            "flops_continued": flops and flops - cost(before),
                            "flops_ladder": flops and flops * (1.0 if grows else 1 + small / size),
                            "flops_cooldown": flops and flops * COOLDOWN,
                            "flops_growth": 2e6 * grows,
                            "flops_probe": 0.0,
                            "flops_eval": 3e9,
                            "flops_tuning": 0.0,
                            "loss": loss,
                            "bits_per_byte": loss / np.log(2),
                            "excess_loss": None,
                            "growth_gap": 4e-6 + arm.jump if grows else None,
                            "growth_loss_jump": arm.jump if grows else None,
                            "alive_share": arm.alive if grows else None,
                            "wall_s": cost(point) / 5e9,
                            "peak_memory_bytes": 410_000_000,
                        }
                    )
    return _frame(results, RESULTS), _frame(curves, CURVES), _frame(list(stages.values()), STAGES)


def provenance() -> dict[str, object]:
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
