"""Numbers as text: rounded once, with their unit and a true minus sign. A missing value reads as a dash.

>>> loss(1.79034), signed(-0.0345), flops(1.234e12), ratio(0.7812)
('1.7903', '−0.0345', '1.23 TFLOPs', '0.781×')
"""

import glob
import math
import re
import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd

DASH = "–"
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def missing(value: Any) -> bool:
    """Whether there is no value: None, NA or NaN."""
    return value is None or bool(pd.isna(value))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def fixed(value: float | None, digits: int) -> str:
    """A number with a fixed count of decimals, or an exponent from a million on; never a negative zero."""
    if missing(value) or abs(float(value or 0.0)) >= 1e6:
        return significant(value)
    return _minus(f"{round(float(value or 0.0), digits) + 0.0:.{digits}f}")


def loss(value: float | None) -> str:
    """Four decimals: seeds differ in the third."""
    return fixed(value, 4)


def signed(value: float | None) -> str:
    """A difference of losses, with its sign."""
    text = loss(value)
    return f"+{text}" if text[0].isdigit() and text.strip("0.") else text


def ratio(value: float | None, digits: int = 3) -> str:
    """Three significant digits and a multiplication sign."""
    return DASH if missing(value) else f"{significant(float(value or 0.0), digits)}×"


def significant(value: float | None, digits: int = 3) -> str:
    """A number to some significant digits, without an exponent where it has a plain form."""
    if missing(value):
        return DASH
    number = float(f"{float(value or 0.0):.{digits}g}")
    if number != 0 and not 1e-3 <= abs(number) < 1e6:
        mantissa, exponent = f"{number:.{digits - 1}e}".split("e")
        return f"{_minus(mantissa)}e{_minus(str(int(exponent)))}"
    return _minus(f"{number:#.{digits}g}".rstrip(".")) if abs(number) < 10**digits else _minus(f"{number:,.0f}")


def scaled(value: float | None, unit: str) -> str:
    """Three significant digits with an SI prefix: 1.23 TFLOPs.

    >>> scaled(999.96e9, "FLOPs"), scaled(0.0, "B")
    ('1.00 TFLOPs', '0 B')
    """
    if missing(value):
        return DASH
    number = float(f"{float(value or 0.0):.3g}")
    if abs(number) < 1:
        return f"{_minus(f'{number:g}')} {unit}"
    index = min(math.floor(math.log10(abs(number)) / 3 + 1e-12), len(PREFIXES) - 1)
    return f"{significant(number / 10 ** (3 * index))} {PREFIXES[index]}{unit}"


def flops(value: float | None) -> str:
    """A cost, scaled."""
    return scaled(value, "FLOPs")


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return DASH if missing(value) else _minus(f"{int(value or 0):,}")


def percent(value: float | None) -> str:
    """A share, to a tenth of a percent."""
    return DASH if missing(value) else f"{fixed(100 * float(value or 0.0), 1)} %"


def change(value: float | None) -> str:
    """A log ratio as a signed change in percent, to a hundredth below 10 %.

    >>> change(-0.0083), change(0.25), change(1e-9)
    ('−0.83 %', '+28.4 %', '0.00 %')
    """
    if missing(value):
        return DASH
    percents = 100 * math.expm1(min(float(value or 0.0), 700.0))
    text = fixed(percents, 2 if abs(percents) < 10 else 1 if abs(percents) < 100 else 0)
    return f"{'+' if percents > 0 and text.strip('0.') else ''}{text} %"


def interval(low: float | None, high: float | None) -> str:
    """The ends of an interval of a log ratio, in percent; "" where there is none."""
    if missing(low) or missing(high):
        return ""
    return f"{change(low).removesuffix(' %')} to {change(high)}"


def estimate(value: float, low: float, high: float, *, signed: bool = False) -> tuple[str, str]:
    """A value and its interval, to the digits that the interval has: one, or two where the first is a 1.

    An interval without 0 keeps as many more as it takes not to end in a 0.

    >>> estimate(0.01134, 0.0041, 0.0182), estimate(31.2, 24.4, 37.1)
    (('0.011', '[0.004, 0.018]'), ('31', '[24, 37]'))
    >>> estimate(0.0092, 0.0004, 0.018), estimate(-0.0021, -0.007, 0.003, signed=True)
    (('0.0092', '[0.0004, 0.0180]'), ('−0.002', '[−0.007, +0.003]'))
    """
    half = abs(high - low) / 2
    digits = 4 if half == 0 else -math.floor(math.log10(half))
    digits += half * 10**digits < 2
    digits = min(max(digits, 0), 6)
    while low * high > 0 and digits < 6 and round(min(abs(low), abs(high)), digits) == 0:
        digits += 1

    def shown(number: float) -> str:
        text = fixed(number, digits)
        return f"+{text}" if signed and text[0].isdigit() and text.strip("0.") else text

    return shown(value), f"[{shown(low)}, {shown(high)}]"


def p(value: float | None) -> str:
    """A p value, which is never 0.

    >>> p(0.0), p(0.01234), p(0.4321), p(1.0)
    ('< 0.0001', '0.0123', '0.43', '1')
    """
    if missing(value):
        return DASH
    known = float(value or 0.0)
    if known < 1e-4:
        return "< 0.0001"
    return "1" if known >= 0.995 else f"{known:.4f}" if known < 0.1 else f"{known:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the largest two of its units."""
    if missing(value):
        return DASH
    whole = round(float(value or 0.0))
    if whole < 60:
        return f"{significant(value)} s" if value else "0 s"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def shape(value: str | None) -> str:
    """Sizes by their initials, runs of equal layers as n×size; text of another form as it is.

    >>> shape("3 layers, residual 32, heads 4, key 8, value 8, ffn 128/128/512, rank 2")
    '3L R32 H4 K8 V8 F2×128/512 rank 2'
    """
    if missing(value) or not re.fullmatch(r"\d+ layers(, [a-z]+ \d+(/\d+)*)+", str(value)):
        return DASH if missing(value) else str(value)
    layers, *sizes = str(value).split(", ")
    parts = [f"{layers.split()[0]}L"]
    for name, size in (part.split() for part in sizes):
        runs = [(unit, len(list(run))) for unit, run in groupby(size.split("/"))]
        listed = "/".join(f"{n}×{unit}" if n > 1 else unit for unit, n in runs)
        parts.append(f"rank {listed}" if name == "rank" else f"{name[0].upper()}{listed}")
    return " ".join(parts)


def plural(number: int, noun: str) -> str:
    """1 seed, 3 seeds."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listing(items: Sequence[str], last: str = "and", most: int = 30) -> str:
    """a, b and c; from the `most`-th on, how many more."""
    if len(items) > most:
        return f"{', '.join(items[: most - 1])} and {len(items) - most + 1:,} more"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else ""


def command(study: str | None, arm: str) -> str:
    """What runs one arm of a study; --only is a pattern, so its signs are escaped in the name.

    >>> command("quick", "transformer/lora(rank=8)")
    "growbench run quick --only 'transformer/lora(rank=8)'"
    """
    return f"growbench run {shlex.quote(study or 'STUDY')} --only {shlex.quote(glob.escape(arm))}"


def span(values: Sequence[float], form: Any = loss) -> str:
    """Smallest to largest of the values that are there."""
    known = [v for v in values if not missing(v)]
    if not known:
        return DASH
    low, high = form(min(known)), form(max(known))
    return str(low) if low == high else f"{low} to {high}"
