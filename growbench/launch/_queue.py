"""Which stages are ready, which wait, and how far the run has come: one queue for every launcher."""

import heapq
from collections.abc import Iterator, Mapping

from growbench.launch import Event, Listener
from growbench.store import Record, Stage, Store


class Queue:
    """The stages of a plan that have not ended, by what has ended: `ready` ones, and all that are `open`.

    again: stages that failed are run again; else they stay as they are. Stages stand after their parents; a parent that
    is no stage of the queue counts as what the store says of it.
    """

    def __init__(self, stages: Mapping[str, Stage], store: Store, listener: Listener, *, again: bool = True) -> None:
        self.stages, self.again, self._store, self._listener = stages, again, store, listener
        self.finished = self.cached = self.failed = self.blocked = self._tokens = 0
        self._total = sum(stage.tokens for stage in stages.values())
        self.ready: list[tuple[float, str]] = []
        self.children: dict[str, list[str]] = {}
        for key, stage in stages.items():
            self.children.setdefault(stage.parent or "", []).append(key)
        self._left: dict[str, float] = {}
        for key, stage in reversed(list(stages.items())):
            self._left[key] = stage.flops + max((self._left[c] for c in self.children.get(key, ())), default=0.0)
        found = {key: self._find(key) for key in stages}
        self.open = {key for key, record in found.items() if record is None}
        outside = {stage.parent for stage in stages.values()} - stages.keys() - {None}
        parents = found | {key: store.read(key) for key in outside if key}
        self.found = [record for record in found.values() if record is not None]
        for record in self.found:
            self._settle(record, cached=True)
        for key in list(self.open):
            parent = parents.get(stages[key].parent or "")
            if stages[key].parent is None or (parent is not None and parent.status == "ok"):
                self._offer(key)

    def _find(self, key: str) -> Record | None:
        """A stage's record if it need not run; a damaged one is computed again, and named."""
        try:
            record = self._store.read(key)
        except ValueError as error:
            self.report("log", key, f"{error}; it is removed and computed again")
            self._store.discard(key)
            return None
        return None if record is None or (record.status == "failed" and self.again) else record

    def _offer(self, key: str) -> None:
        heapq.heappush(self.ready, (-self._left[key], key))

    def take(self) -> Stage:
        """The ready stage with most work behind it."""
        return self.stages[heapq.heappop(self.ready)[1]]

    def waiting(self) -> Iterator[Stage]:
        """The open stages, parents first."""
        return (stage for key, stage in self.stages.items() if key in self.open)

    def settle(self, record: Record) -> None:
        """A stage has ended: its children become ready, or are given up."""
        self.open.discard(record.key)
        self._settle(record, cached=False)
        for child in self.children.get(record.key, ()):
            if record.status == "ok" and child in self.open:
                self._offer(child)

    def _settle(self, record: Record, *, cached: bool) -> None:
        self._tokens += self.stages[record.key].tokens
        if record.status == "ok":
            self.cached += cached
            self.finished += not cached
            self.report("cached" if cached else "finished", record.key)
        else:
            self.failed += 1
            given_up = self._give_up(record.key)
            also = f"; {given_up} stages that build on it are not run" if given_up else ""
            self.report("failed", record.key, f"{record.status}: {record.reason}{also}")

    def _give_up(self, key: str) -> int:
        below = [child for child in self.children.get(key, ()) if child in self.open]
        self.open.difference_update(below)
        self.blocked += len(below)
        self._tokens += sum(self.stages[child].tokens for child in below)
        return len(below) + sum(self._give_up(child) for child in below)

    def report(self, kind: str, key: str, text: str = "", tokens: int = 0) -> None:
        self._listener(
            Event(
                kind=kind,  # type: ignore[arg-type]
                stage=key,
                label=self.stages[key].label,
                done=self.finished + self.cached + self.failed + self.blocked,
                total=len(self.stages),
                tokens_done=self._tokens + tokens,
                tokens_total=self._total,
                text=text,
            )
        )
