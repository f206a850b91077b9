"""The source trained on: what the budget buys without growing."""

from dataclasses import dataclass

from growbench.shape import Shape
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Continue(Strategy):
    """The source trained on, not grown; at small budgets it may beat everything (arXiv:2605.13405)."""

    def target(self, source: Shape, target: Shape) -> Shape:
        return source
