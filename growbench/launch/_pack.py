"""Which stages share a job: short ones do, long ones do not, and no job waits for a long stage that it does not need.

A stage's job takes along the short stages that build on it, and where but one long stage is left to build on a short
one, that too: init and the first training are one job, a trunk and the short cooldowns at its end are one job, and two
long branches of one trunk are two jobs that depend on the trunk's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from growbench.launch import Needs
from growbench.store import Stage


@dataclass(eq=False)
class Pack:
    """Stages that one job runs, parents first, and the packs that can start when it has ended."""

    stages: list[Stage]
    seconds: float
    after: list["Pack"] = field(default_factory=list)


def pack(stages: Iterable[Stage], needs: Mapping[str, Needs], limit: float) -> list[Pack]:
    """The packs that can start at once, with all others after them; one takes up to about `limit` seconds or one stage.

    Stages stand after their parents; one whose parent is not among them can start at once.
    """
    own = {stage.key: stage for stage in stages}
    children: dict[str, list[Stage]] = {}
    for stage in own.values():
        children.setdefault(stage.parent if stage.parent in own else "", []).append(stage)
    weight: dict[str, float] = {}
    for key in reversed(own):
        weight[key] = needs[key].seconds + sum(weight[child.key] for child in children.get(key, ()))

    def subtree(stage: Stage) -> list[Stage]:
        return [stage, *(below for child in children.get(stage.key, ()) for below in subtree(child))]

    def grouped(trees: list[Stage]) -> list[Pack]:
        """Small subtrees, as many to a pack as fit."""
        packs: list[Pack] = []
        for tree in trees:
            if not packs or packs[-1].seconds + weight[tree.key] > limit:
                packs.append(Pack([], 0.0))
            packs[-1].stages += subtree(tree)
            packs[-1].seconds += weight[tree.key]
        return packs

    def split(trees: list[Stage]) -> tuple[list[Stage], list[Stage]]:
        return [t for t in trees if weight[t.key] > limit], [t for t in trees if weight[t.key] <= limit]

    def of(stage: Stage) -> Pack:
        """The pack that begins with a stage whose subtree is too large for one."""
        seconds = needs[stage.key].seconds
        large, small = split(children.get(stage.key, []))
        along = seconds + sum(weight[tree.key] for tree in small)
        if len(large) == 1 and along <= limit:
            onward = of(large[0])
            stages = [stage, *(below for tree in small for below in subtree(tree)), *onward.stages]
            return Pack(stages, along + onward.seconds, onward.after)
        first, *rest = grouped(small) or [Pack([], 0.0)]
        return Pack([stage, *first.stages], seconds + first.seconds, [*rest, *map(of, large)])

    large, small = split(children.get("", []))
    return [*map(of, large), *grouped(small)]
