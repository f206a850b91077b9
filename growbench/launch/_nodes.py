"""A job on several machines: the first runs the stages, and calls the others to each that has several devices.

    first machine                                   each of the others
    drain -> worker -> devices.execute   <------>   devices.execute <- assist
       Caller says the stage's key       ------->   hears it, and "" at the end

Both connections lead to the first machine: `Node.port` is the Caller's, the next one that of the stage's processes.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from growbench.devices import Node, execute
from growbench.launch import Site
from growbench.store import Stage

FIRST_PORT, JOBS = 20_000, 6_000
"""Jobs of different numbers on one machine meet on ports of their own, below those that the system gives out."""
PARTING_SECONDS = 60.0


def here(environ: Mapping[str, str] = os.environ) -> Node:
    """Which of a Slurm job's machines this is, from the environment of its task; the only one outside of Slurm."""
    machines = int(environ.get("SLURM_JOB_NUM_NODES", "1"))
    if machines == 1:
        return Node()
    return Node(
        number=int(environ["SLURM_NODEID"]),
        count=machines,
        address=first_host(environ["SLURM_JOB_NODELIST"]),
        port=FIRST_PORT + 2 * (int(environ["SLURM_JOB_ID"]) % JOBS),
    )


def first_host(nodes: str) -> str:
    """The first of the machines in a list as Slurm writes it.

    >>> [first_host(nodes) for nodes in ("a1", "a1,b2", "a[08-11,14],b1", "a[3,5]-x")]
    ['a1', 'a1', 'a08', 'a3-x']
    """
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    assert found is not None
    return "".join(part or "" for part in found.groups())


def meeting(node: Node, stage: Stage) -> Node:
    """Where the processes of a stage meet: on all machines, or with one device on this one alone."""
    return replace(node, port=node.port + 1) if stage.devices > 1 and node.count > 1 else Node()


class Caller:
    """The first machine's word to the others."""

    def __init__(self, node: Node) -> None:
        self._others, self._said = node.count - 1, 0
        self._store = TCPStore(node.address, node.port, is_master=True, wait_for_workers=False)

    def say(self, key: str) -> None:
        self._store.set(str(self._said), key)
        self._said += 1

    def part(self) -> None:
        """Send the others away, and wait until they have heard it, or for a while."""
        self.say("")
        end = time.monotonic() + PARTING_SECONDS
        while self._store.add("parted", 0) < self._others and time.monotonic() < end:
            time.sleep(0.1)


def assist(node: Node, stages: Mapping[str, Stage], site: Site) -> None:
    """Take this machine's part in every stage that the first one calls to, until it is sent away."""
    store = TCPStore(node.address, node.port, is_master=False)
    store.set_timeout(timedelta(days=365))  # for as long as the first machine runs stages of its own
    for number in count():
        if not (key := store.get(str(number)).decode()):
            store.add("parted", 1)
            return
        stage = stages[key]
        execute(stage, site.store, site.plugin_paths, site.cache, lambda tokens: None, node=meeting(node, stage))
