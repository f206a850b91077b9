"""How fast growbench is, as ratios measured in one run: prints the table of docs/performance.md.

    OMP_NUM_THREADS=2 python tests/benchmarks/performance.py [WORD ...]      only the rows of these functions

Times of one row are taken in turn, several rounds of each side, and the medians are compared: a machine that others use
slows both sides alike.
"""

import math
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from growbench import ledger, optimizer, plugins, state, train
from growbench.parametrization import Parametrization
from growbench.plan import make_plan
from growbench.progress import Progress
from growbench.shape import Shape
from growbench.state import State
from growbench.store import Stage, Store
from growbench.strategy import Probe
from growbench.study import parse_study, read_study
from growbench.task import Stream

THREADS = 2
ROUNDS = 5
LEARNING_RATE = 1e-3
TRANSFORMER = Shape(layers=4, residual=128, heads=4, key=32, value=32, ffn=512, context=128)
SMALL = Shape(layers=2, residual=64, heads=4, key=16, value=16, ffn=256, context=128)
GPT2 = Shape(layers=12, residual=768, heads=12, key=64, value=64, ffn=3072, vocab=50257, context=1024, tied=True)
MEDIUM = replace(GPT2, layers=24, residual=1024, heads=16, ffn=4096)
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table: how many times `against` it is, the target in words, and what was measured."""

    what: str
    against: str
    ratio: float
    target: str
    measured: str


# --- measuring -------------------------------------------------------------------------------------------------------


def seconds(*sides: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Median seconds of each side, all of them in turn in every round, the first round not counted."""
    times: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for own, side in zip(times, sides, strict=True):
            start = time.perf_counter()
            side()
            if number:
                own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def repeated(step: Callable[[], object], count: int) -> Callable[[], None]:
    """So many calls as one."""

    def side() -> None:
        for _ in range(count):
            step()

    return side


# --- what is compared ------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A block of a plain GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).split(width, dim=2)
        q, k, v = (z.view(batch, length, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return out


class PlainGPT(nn.Module):
    """The model that a user would write: LayerNorm, learned positions, GELU, scaled_dot_product_attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, heads = shape.residual, shape.at("heads", 0)
        self.tokens, self.positions = nn.Embedding(shape.vocab, width), nn.Embedding(shape.context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(shape.layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, shape.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


class Pattention(nn.Module):
    """The published layer, word for word (arXiv:2410.23168 and its code): a mask of ones, an L2 norm, then GELU."""

    def __init__(self, read: int, written: int, tokens: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(tokens, read) * 0.02)
        self.values = nn.Parameter(torch.randn(tokens, written) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.keys.transpose(-2, -1)
        scores = scores * torch.ones(x.shape[-2], self.keys.shape[0], dtype=x.dtype)
        weights = F.gelu(scores / torch.norm(scores, p=2, dim=-1, keepdim=True) * math.sqrt(scores.shape[-1]))
        out: Tensor = weights @ self.values
        return out


class PublishedTokenformer(nn.Module):
    """A decoder of published Pattention layers, in the sizes of a shape; norms without gains, learned positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, tokens = shape.residual, shape.at("tokens", 0)
        self.heads = shape.at("heads", 0)
        self.tokens, self.positions = nn.Embedding(shape.vocab, width), nn.Embedding(shape.context, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [*(Pattention(width, width, tokens) for _ in "qkvo"), Pattention(width, width, shape.at("ffn", 0))]
            )
            for _ in range(shape.layers)
        )
        self.head = nn.Linear(width, shape.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        batch, length, width = x.shape
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            h = F.layer_norm(x, (width,))
            q, k, v = (own(h).view(batch, length, self.heads, -1).transpose(1, 2) for own in layer[:3])
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer[3](mixed.transpose(1, 2).reshape(batch, length, width))
            x = x + layer[4](F.layer_norm(x, (width,)))
        out: Tensor = self.head(F.layer_norm(x, (width,)))
        return out


def batches(shape: Shape) -> Callable[[], Tensor]:
    """A batch of random tokens (BATCH, context + 1), the same one each time."""
    drawn = torch.randint(shape.vocab, (BATCH, shape.context + 1), generator=torch.Generator().manual_seed(0))
    return lambda: drawn


def bare(net: nn.Module, optimize: torch.optim.Optimizer, batch: Callable[[], Tensor]) -> Callable[[], None]:
    """A step as a user would write it: forward, backward, clip, AdamW."""
    weights = [weight for weight in net.parameters() if weight.requires_grad]

    def step() -> None:
        windows = batch()
        loss = F.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimize.step()
        optimize.zero_grad()

    return step


def theirs(net: nn.Module, shape: Shape) -> Callable[[], None]:
    return bare(net, torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, fused=True), batches(shape))


def initial(shape: Shape) -> State:
    scaling = Parametrization(name="mup", base=shape)
    return state.initial(shape, scaling, torch.Generator().manual_seed(0))


def ours(shape: Shape) -> Callable[[], None]:
    """A bare step of growbench's model with its optimizer."""
    start = initial(shape)
    net = start.model()
    return bare(net, optimizer.build(start, net, optimizer.Settings(learning_rate=LEARNING_RATE)), batches(shape))


def tokenformer(shape: Shape) -> Shape:
    """The TokenFormer of the same width, depth and number of weights."""
    width = shape.residual
    units = shape.params_non_embedding // shape.layers // (2 * width)
    tokens = units // 12
    return replace(shape, placement="everywhere", tokens=tokens, ffn=units - 4 * tokens, nonlinearity="l2_gelu")


# --- rows ------------------------------------------------------------------------------------------------------------


def throughput() -> Iterator[Row]:
    for shape, name, target in (
        (TRANSFORMER, "training, d128 L4 h4 T128 B32", "≥ 1.3"),
        (SMALL, "the same, d64 L2", "≥ 1.5"),
    ):
        steps = 4 if shape is TRANSFORMER else 16
        one, other = seconds(repeated(ours(shape), steps), repeated(theirs(PlainGPT(shape), shape), steps))
        tokens = steps * BATCH * shape.context
        yield Row(
            what=f"{name}, tokens/s",
            against="a bare loop over a plain GPT",
            ratio=other / one,
            target=target,
            measured=f"{tokens / one:,.0f} and {tokens / other:,.0f} tokens/s",
        )


def utilisation() -> Iterator[Row]:
    matrix = torch.randn(2048, 2048)
    one, product = seconds(repeated(ours(TRANSFORMER), 4), lambda: matrix @ matrix)
    flops = ledger.train_flops(TRANSFORMER) * BATCH * TRANSFORMER.context * 4
    rate, peak = flops / one, 2 * 2048**3 / product
    yield Row(
        what="model FLOPs of that training",
        against="float32 products of 2048 x 2048 matrices",
        ratio=rate / peak,
        target="≥ 0.6",
        measured=f"{rate / 1e9:.0f} and {peak / 1e9:.0f} GFLOP/s",
    )


def engine() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        loop, stage = _loop(Path(folder), TRANSFORMER)
        plain = bare(loop.net, loop.inner, lambda: loop.bench.batch(loop.tokens))

        def whole() -> None:
            loop.step()
            loop.progress.losses.clear()

        both = [repeated(whole, 4), repeated(plain, 4)]
        one, other = seconds(*both, rounds=9)
        assert stage.kind == "train"
    yield Row(
        what="the engine's step: data, masks, ledger, schedule, Fabric",
        against="the same model and optimizer in a for loop",
        ratio=one / other,
        target="≤ 1.02",
        measured=f"{one / 4 * 1e3:.1f} and {other / 4 * 1e3:.1f} ms a step",
    )


def _loop(folder: Path, shape: Shape) -> tuple[Any, Stage]:
    """The engine's loop over the first training stage of a study of one shape."""
    sizes = {n: getattr(shape, n) for n in ("layers", "residual", "heads", "key", "value", "ffn")}
    tokens = BATCH * shape.context * 200
    text = folder / "text.txt"
    text.write_bytes(np.random.default_rng(0).integers(32, 127, 2_000_000, dtype=np.uint8).tobytes())
    study = parse_study(
        f"study: speed\ntasks: ['text:{text}']\nseeds: 1\nladders: {{transformer: [{sizes}]}}\nstrategies: [scratch]\n"
        f"budget: {{tokens: {tokens}, split: []}}\ntrain: {{context: {shape.context}, batch: {BATCH}, learning_rate: "
        f"0.001, eval_every: {tokens}, eval_tokens: 4096}}\n",
        "speed",
    )
    plan = make_plan(study)
    init, stage = (next(s for s in plan.stages.values() if s.kind == kind) for kind in ("init", "train"))
    drawn = train.initialise(train.Bench(identity=init.identity, plugin_paths=(), cache=folder)).checkpoint
    assert drawn is not None
    bench = train.Bench(identity=stage.identity, plugin_paths=(), cache=folder)
    return train._Loop("train", bench, Progress(checkpoint=drawn)), stage


def architectures() -> Iterator[Row]:
    shape = tokenformer(TRANSFORMER)
    sides = (ours(shape), ours(TRANSFORMER), theirs(PublishedTokenformer(shape), shape))
    own, transformer, published = seconds(*(repeated(side, 4) for side in sides))
    tokens = 4 * BATCH * shape.context
    yield Row(
        what=f"tokenformer, {shape.params_non_embedding:,} weights, tokens/s",
        against=f"transformer, {TRANSFORMER.params_non_embedding:,} weights",
        ratio=transformer / own,
        target="≥ 0.8",
        measured=f"{tokens / own:,.0f} and {tokens / transformer:,.0f} tokens/s",
    )
    yield Row(
        what="tokenformer, tokens/s",
        against="a transcription of the published layer",
        ratio=published / own,
        target="≥ 1.3",
        measured=f"{tokens / own:,.0f} and {tokens / published:,.0f} tokens/s",
    )


def _train_small(threads: int, steps: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    repeated(ours(SMALL), steps)()


def workers() -> Iterator[Row]:
    context, steps = multiprocessing.get_context("spawn"), 120

    def two_of_one_thread() -> None:
        processes = [context.Process(target=_train_small, args=(1, steps)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()

    def one_of_two_threads() -> None:
        process = context.Process(target=_train_small, args=(2, 2 * steps))
        process.start()
        process.join()

    one, other = seconds(two_of_one_thread, one_of_two_threads, rounds=3)
    yield Row(
        what="two workers of one thread, small models",
        against="one worker of two threads",
        ratio=other / one,
        target="≥ 1.3",
        measured=f"{one:.1f} and {other:.1f} s for {2 * steps} steps",
    )


def sharing() -> Iterator[Row]:
    """FLOPs of `standard`, of every point of it trained by itself, and what each kind of sharing saves."""
    study = read_study("standard")
    tasks = [task for task in study.model_dump()["tasks"] if task["name"] != "shakespeare"]  # which needs a download
    plan = make_plan(type(study).model_validate(study.model_dump() | {"tasks": tasks}).at(seeds=1))
    flops = {key: stage.flops for key, stage in plan.stages.items()}
    apart = sum(flops[key] for arm in plan.arms for point in arm.points for key in point.path)
    trunks = sum(sum(flops[key] for key in {k for point in arm.points for k in point.path}) for arm in plan.arms)
    executed = sum(flops[key] for key in {k for arm in plan.arms for point in arm.points for k in point.path})
    yield Row(
        what="FLOPs executed by `standard`",
        against="every budget point of every arm trained by itself",
        ratio=executed / apart,
        target="≤ 0.6",
        measured=f"{executed:.3g} and {apart:.3g}; a trunk shared by its budget points saves {1 - trunks / apart:.0%}, "
        f"sources and trunks shared by arms {(trunks - executed) / apart:.0%}",
    )


def growing() -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    process = context.Process(target=_grow, args=(answers,))
    process.start()
    one, other, drawn, peak, size = answers.get()
    process.join()
    yield Row(
        what="growing 124M weights to 354M, with both moments, copies by index",
        against="copying as many bytes as source and target have",
        ratio=one / other,
        target="≤ 3",
        measured=f"{one:.1f} and {other:.1f} s; {drawn:.1f} s more where free directions are drawn at random",
    )
    yield Row(
        what="its peak of memory",
        against="source and target",
        ratio=peak / size,
        target="≤ 1.2",
        measured=f"{peak / 1e9:.2f} and {size / 1e9:.2f} GB",
    )


def _grow(answers: Any) -> None:
    torch.set_num_threads(THREADS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    source = initial(GPT2)
    trained = {name: torch.rand_like(weight) for name, weight in source.weights.items()}
    second = {name: own.clone() for name, own in trained.items()}
    source = replace(source, first=trained, second=second, steps=dict.fromkeys(trained, 1))
    quiet = plugins.load("strategy", "net2net", ())(noise=0.0)
    noisy = plugins.load("strategy", "net2net", ())()
    rng = torch.Generator().manual_seed(0)
    probe = Probe(lambda used: torch.zeros(1, 2, dtype=torch.int64), 0)

    def grown(strategy: Any) -> tuple[float, int]:
        start = time.perf_counter()
        state = strategy.grow(source, MEDIUM, probe, rng).state
        took = time.perf_counter() - start
        return took, sum(t.nbytes for group in (state.weights, state.first, state.second) for t in group.values())

    once = sum(t.nbytes for group in (source.weights, source.first, source.second) for t in group.values())
    times = [grown(quiet) for _ in range(3)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    size = times[0][1]
    rows = torch.empty(size // 4)
    start = time.perf_counter()
    read = [t.clone() for group in (source.weights, source.first, source.second) for t in group.values()]
    rows.fill_(1.0)
    copied = time.perf_counter() - start
    del read, rows
    took = statistics.median(took for took, _ in times)
    drawn, _ = grown(noisy)
    answers.put((took, copied, drawn - took, peak, once + size))


def pipeline() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        np.random.default_rng(0).integers(0, 256, 2**26, dtype=np.uint8).tofile(path)
        stream = Stream(np.memmap(path, np.uint8, "r"), context=128, seed=0)
        count, first = 512, 0

        def read() -> None:
            nonlocal first
            stream.batch(first, count)
            first += count

        (took,) = seconds(repeated(read, 20))
    rate = 20 * count * 128 / took
    yield Row(
        what="batches from a file in memory, tokens/s",
        against="50 million",
        ratio=rate / 5e7,
        target="≥ 1",
        measured=f"{rate / 1e6:.0f} million tokens/s",
    )


def evaluation() -> Iterator[Row]:
    study = read_study("quick")
    plan = make_plan(study.at(seeds=1), only="*transformer/scratch*")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        stages = [stage for stage in plan.stages.values() if stage.kind in ("init", "train")]
        init = stages[0]
        stage = next(stage for stage in stages if stage.parent == init.key and stage.kind == "train")
        spent = {"eval": 0.0}
        validate = train.validate

        def timed(*given: Any) -> Any:
            start = time.perf_counter()
            try:
                return validate(*given)
            finally:
                spent["eval"] += time.perf_counter() - start

        train.execute(init, store, (), Path(folder), lambda tokens: None)
        with mock.patch.object(train, "validate", timed):
            start = time.perf_counter()
            train.execute(stage, store, (), Path(folder), lambda tokens: None)
            whole = time.perf_counter() - start
    yield Row(
        what="evaluation in a training stage of `quick`",
        against="the whole stage",
        ratio=spent["eval"] / whole,
        target="≤ 0.05",
        measured=f"{spent['eval']:.2f} of {whole:.2f} s",
    )


def starting() -> Iterator[Row]:
    for words in (["--help"], ["list"]):
        code = f"import sys; sys.argv = ['growbench', *{words!r}]; from growbench.cli import main; main()"

        def start(code: str = code) -> None:
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

        (took,) = seconds(start)
        yield Row(
            what=f"growbench {' '.join(words)}",
            against="0.3 s",
            ratio=took / 0.3,
            target="< 1",
            measured=f"{took:.2f} s",
        )


ROWS = (throughput, utilisation, engine, architectures, workers, sharing, growing, pipeline, evaluation, starting)


def main(words: list[str]) -> None:
    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    sys.stdout.write("| what | against | ratio | target | measured |\n|---|---|---|---|---|\n")
    for rows in ROWS:
        if words and rows.__name__ not in words:
            continue
        for row in rows():
            sys.stdout.write(f"| {row.what} | {row.against} | {row.ratio:.2f} | {row.target} | {row.measured} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
