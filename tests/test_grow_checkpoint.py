"""Grown checkpoints: every family under every strategy that preserves the function, by transformers' own models."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
import transformers
from torch import Tensor

from growbench import families, maps, plugins, pretrained, shards
from growbench.strategy import Strategy

EXACT = 1e-12
"""Largest difference of a logit in float64, relative to the largest logit."""
TOKENS = torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(1))
WORDS = [*checkpoints.HF, "tokenformer"]
TWICE: dict[str, dict[str, int]] = {
    "gpt2": {"residual": 32, "ffn": 48},
    "llama": {"residual": 32, "ffn": 48, "heads": 8},
    "pythia": {"residual": 64, "ffn": 48},
    "tokenformer": {"residual": 32, "ffn": 20, "tokens": 12, "proj_tokens": 10},
}
UNEVEN: dict[str, dict[str, int]] = {
    "gpt2": {"residual": 24, "ffn": 40},
    "llama": {"residual": 27, "ffn": 30, "heads": 9, "groups": 3},
    "pythia": {"residual": 40, "ffn": 30},
    "tokenformer": {"residual": 24, "ffn": 13, "tokens": 8, "proj_tokens": 7},
}
DEEPER = {"layers": 5}


def sizes(table: Mapping[str, dict[str, int]], word: str) -> dict[str, int]:
    """The growth of a family's checkpoints in a table."""
    alike = {"llama-biases": "llama", "qwen2": "llama", "qwen3": "llama", "neox-serial": "pythia"}
    found = table[alike.get(word, word.removesuffix("-untied"))]
    if word == "gpt2-untied" and "ffn" in found:  # its feed-forward layer is as wide as the default has it
        return found | {"ffn": 4 * found["ffn"]}
    return found | ({"groups": found["heads"]} if word == "llama-biases" else {})


def preserving() -> dict[str, Strategy]:
    """Every strategy that states to preserve the function and grows by maps."""
    made = {name: plugins.load("strategy", name)() for name in plugins.discover("strategy")}
    by_maps = {n: s for n, s in made.items() if s.source and type(s).grow is Strategy.grow}
    more = {"hyperclone 10 dB": plugins.load("strategy", "hyperclone")(snr_db=10.0)}
    more["fpi weighted"] = plugins.load("strategy", "fpi")(weighted=True)
    return {n: s for n, s in (by_maps | more).items() if s.preserves == "function"}


STRATEGIES = preserving()


class Double:
    """torch to transformers' models, whose norms and softmaxes round to float32: here float32 reads as float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in {kind for kind, _ in checkpoints.HF.values()}:
        module = f"transformers.models.{kind}.modeling_{kind}"
        monkeypatch.setattr(f"{module}.torch", Double())
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {word: checkpoints.make(word, folder / word) for word in WORDS}


def logits(folder: Path) -> Tensor:
    return pretrained.logits(folder, TOKENS, torch.float64)


def difference(before: Path, after: Path) -> float:
    old, new = logits(before), logits(after)
    return float((new - old).abs().max() / old.abs().max())


def refusal(word: str, name: str, to: Mapping[str, int]) -> str:
    """Why a growth is refused, as a pattern; empty where it is exact."""
    uneven = to not in (sizes(TWICE, word), DEEPER)
    wider, layered = "residual" in to, word.startswith(("gpt2", "pythia", "neox"))
    if name == "continue":
        return "shape of its own"
    if name in ("identity", "zero_depth"):
        return "grows depth alone" if wider else ""
    if name.startswith("hyperclone"):
        return "does not grow by a whole factor" if uneven else "clones width, not depth" * ("layers" in to)
    if word == "tokenformer" and wider:
        if name == "orthogonal":
            return "tied embedding"
        if name in ("net2net", "fpi weighted") or uneven or name == "zero_pad":
            return "cannot express this growth exactly"
    drawn = name in ("net2net", "fpi weighted")
    return "LayerNorm: uneven copies" if wider and layered and drawn else ""


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("growth", ["twice", "uneven", "deeper"])
def test_logits_are_the_sources(word: str, name: str, growth: str, sources: dict[str, Path], tmp_path: Path) -> None:
    to = {"twice": sizes(TWICE, word), "uneven": sizes(UNEVEN, word), "deeper": DEEPER}[growth]
    out = tmp_path / "grown"
    if words := refusal(word, name, to):
        with pytest.raises(ValueError, match=words):
            pretrained.grow(sources[word], out, STRATEGIES[name], to=to, verify=False)
        assert not out.exists()
        return
    grown = pretrained.grow(sources[word], out, STRATEGIES[name], to=to, verify=False)
    assert difference(sources[word], out) < EXACT
    found = pretrained.read(out)
    assert {name: found.sizes[name] for name in to} == to
    assert grown.params == tuple(sum(t.numel() for t in checkpoints.tensors(f).values()) for f in (sources[word], out))


@pytest.mark.parametrize("word", ["llama", "qwen2", "pythia", "gpt2"])
def test_width_and_depth_grow_at_once(word: str, sources: dict[str, Path], tmp_path: Path) -> None:
    to = sizes(TWICE, word) | DEEPER
    pretrained.grow(sources[word], tmp_path / "grown", STRATEGIES["lemon"], to=to, verify=False)
    assert difference(sources[word], tmp_path / "grown") < EXACT


def test_layers_of_different_kinds_keep_theirs(tmp_path: Path) -> None:
    """A sliding window of some layers follows them."""
    kinds = ["full_attention", "sliding_attention"]
    window: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 4, "layer_types": kinds}
    source = checkpoints.make("qwen2", tmp_path / "source", **window)
    pretrained.grow(source, tmp_path / "grown", STRATEGIES["zero_depth"], to={"layers": 4}, verify=False)
    assert difference(source, tmp_path / "grown") < EXACT
    assert json.loads((tmp_path / "grown" / "config.json").read_text())["layer_types"] == [
        k for k in kinds for _ in "ab"
    ]


@pytest.mark.parametrize("word", ["llama", "pythia"])
def test_hyperclone_is_the_tiled_checkpoint(word: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """W' = tile(W) / copies read (arXiv:2409.12903), norms tiled: what the published code writes for these families."""
    pretrained.grow(sources[word], tmp_path / "grown", STRATEGIES["hyperclone"], to=sizes(TWICE, word), verify=False)
    old, new = checkpoints.tensors(sources[word]), checkpoints.tensors(tmp_path / "grown")
    lookups = {"model.embed_tokens.weight", "gpt_neox.embed_in.weight"}
    for name, tensor in old.items():
        copies = [after // before for before, after in zip(tensor.shape, new[name].shape, strict=True)]
        tiled = tensor.repeat(*copies) / (copies[-1] if tensor.dim() == 2 and name not in lookups else 1)
        assert torch.equal(new[name], tiled), name


@pytest.mark.parametrize("word", ["gpt2", "llama", "qwen3", "pythia"])
def test_grown_units_receive_gradient(word: str, sources: dict[str, Path], tmp_path: Path) -> None:
    """zero_pad's new units are silent, and wake: every new row or column of a matrix has a gradient somewhere."""
    to = sizes(TWICE, word)
    pretrained.grow(sources[word], tmp_path / "grown", STRATEGIES["zero_pad"], to=to, verify=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "grown", dtype=torch.float64)
    model(TOKENS, labels=TOKENS).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.dim() == 2}
    embedding = next(g for name, g in gradients.items() if name.endswith(("wte.weight", "tokens.weight", "in.weight")))
    assert embedding is not None
    assert float(embedding[:, to["residual"] // 2 :].abs().max()) > 1e-6
    down = next(
        g for n, g in gradients.items() if n.endswith(("mlp.c_proj.weight", "down_proj.weight", "4h_to_h.weight"))
    )
    assert down is not None
    units = (down if "gpt2" in word else down.T)[to["ffn"] // 2 :]
    assert float(units.abs().sum(1).min()) > 1e-9


def test_strategies_that_preserve_nothing_say_how_far_they_went(sources: dict[str, Path], tmp_path: Path) -> None:
    random = plugins.load("strategy", "random")()
    grown = pretrained.grow(sources["llama"], tmp_path / "grown", random, to=sizes(TWICE, "llama"))
    assert grown.difference is not None
    assert grown.difference > 0.01


def test_what_is_not_exact_is_done_when_asked_and_measured(sources: dict[str, Path], tmp_path: Path) -> None:
    to = sizes(UNEVEN, "gpt2")
    grown = pretrained.grow(sources["gpt2"], tmp_path / "grown", STRATEGIES["net2net"], to=to, approximate=True)
    assert grown.difference is not None
    assert grown.difference > 1e-6
    assert any("LayerNorm" in note for note in grown.notes)


def test_attention_scaled_by_the_layers_index_does_not_grow_deeper(tmp_path: Path) -> None:
    source = checkpoints.make("gpt2", tmp_path / "source", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="scale_attn_by_inverse_layer_idx"):
        pretrained.grow(source, tmp_path / "grown", STRATEGIES["identity"], to={"layers": 3})


def test_a_strategy_that_claims_wrongly_is_found_out(sources: dict[str, Path], tmp_path: Path) -> None:
    """Its map of the feed-forward axis copies, and the readers' share is wrong by what its fill adds beyond `free`."""

    class Liar(type(STRATEGIES["zero_pad"])):  # type: ignore[misc]
        def opens(self, axis: Any, axis_map: Any) -> str:
            return "both"

    with pytest.raises(ValueError, match="more than rounding explains"):
        pretrained.grow(sources["llama"], tmp_path / "grown", Liar(), to=sizes(TWICE, "llama"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "to", "words"),
    [
        ("llama", {"width": 8}, "no size 'width'"),
        ("llama", {"residual": 8}, "residual would shrink from 16 to 8"),
        ("llama", {"residual": 16}, "nothing grows"),
        ("llama", {"heads": 5}, "no multiple of the 2 that share a group"),
        ("llama", {"heads": 6, "groups": 4}, "cannot share 4 groups evenly"),
        ("llama", {"groups": 4}, "fewer heads than its 2"),
        ("llama", {"residual": 18}, r"transformers has no such LlamaForCausalLM: .* \(18\).* \(4\)"),
        ("gpt2", {"residual": 18}, "no multiple of the head width 4"),
        ("pythia", {"residual": 64, "heads": 4}, "the head width stays"),
    ],
)
def test_sizes_without_a_model_are_refused(
    word: str, to: dict[str, int], words: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        pretrained.grow(sources[word], tmp_path / "grown", STRATEGIES["zero_pad"], to=to)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_preserved_to_their_rounding(dtype: torch.dtype, tmp_path: Path) -> None:
    source = checkpoints.make("llama", tmp_path / "source", dtype)
    grown = pretrained.grow(source, tmp_path / "grown", STRATEGIES["lemon"], to=sizes(UNEVEN, "llama"))
    assert grown.difference is not None
    assert grown.largest_logit is not None
    assert grown.difference <= pretrained.tolerance(dtype) * grown.largest_logit
    assert {spec.dtype for spec in shards.read(tmp_path / "grown").specs.values()} == {dtype}


# --- blocks, files and memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name"),
    [("llama", "net2net")]
    + [(word, name) for word in ("gpt2", "llama") for name in ("zero_pad", "lemon", "hyperclone 10 dB", "orthogonal")],
)
def test_blocks_and_shards_change_no_function(
    word: str, name: str, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "BLOCK", 40)
    out = tmp_path / "grown"
    pretrained.grow(sources[word], out, STRATEGIES[name], to=sizes(TWICE, word), verify=False, limit=5000)
    assert len(list(out.glob("model-*.safetensors"))) > 1
    assert difference(sources[word], out) < EXACT


def test_a_map_of_copies_is_the_map_of_its_blocks() -> None:
    copies = maps.copy(torch.tensor([0, 1, 2, 3, 4, -1, 2, 2, 0, -1, -1]), 5, isometric=True)
    ranges = [(start, min(start + 2, 5)) for start in range(0, 5, 2)]
    blocks = [(start, end, *pretrained.block(copies, start, end)) for start, end in ranges]
    assert sorted(torch.cat([units for _, _, units, _ in blocks]).tolist()) == list(range(11))
    for start, end, units, own in blocks:
        assert torch.equal(own.expand, copies.expand[units, start:end])
        assert torch.equal(own.collapse, copies.collapse[start:end, units])


SCRIPT = """
import sys, threading
from pathlib import Path
from growbench import families, maps, plugins, pretrained, shards
import transformers, transformers.models.llama.configuration_llama

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

source, out, name, residual, ffn = sys.argv[1:]
strategy = plugins.load("strategy", name)()
pretrained.read(Path(source))
before = memory("VmRSS")
pretrained.grow(Path(source), Path(out), strategy, to={"residual": int(residual), "ffn": int(ffn)}, verify=False)
print(memory("VmHWM") - before)
"""


def sharded(folder: Path, *, vocab: int, residual: int, ffn: int) -> int:
    """Write a Llama checkpoint of two layers in shards; the bytes of its largest tensor."""
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=residual,
        intermediate_size=ffn,
        num_hidden_layers=2,
        num_attention_heads=residual // 64,
        dtype="float32",
        architectures=["LlamaForCausalLM"],
    )
    folder.mkdir()
    config.save_pretrained(folder)
    family = families.find("LlamaForCausalLM")
    stored = family.stored(config, family.read_sizes(config), tied=False)
    specs = {name: shards.Spec(shape=one.shape, dtype=torch.float32) for name, one in stored.items()}
    writer = shards.Writer(folder, specs, limit=max(spec.bytes for spec in specs.values()))
    for name in specs:
        with writer.tensor(name) as target:
            for start in range(0, len(target.tensor), 1024):
                target.tensor[start : start + 1024].normal_(std=0.02)
    return max(spec.bytes for spec in specs.values())


def peak(source: Path, out: Path, name: str, residual: int, ffn: int) -> int:
    """Bytes of resident memory that growing took, above what the process had before."""
    given = [str(source), str(out), name, str(residual), str(ffn)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check_memory(folder: Path, name: str, *, vocab: int, residual: int, ffn: int) -> None:
    largest = sharded(folder / "source", vocab=vocab, residual=residual, ffn=ffn)
    assert len(list((folder / "source").glob("model-*.safetensors"))) >= 3
    used = peak(folder / "source", folder / "grown", name, 2 * residual, 2 * ffn)
    assert used < 1.3 * (largest + 2 * largest), f"{used / 3 / largest:.2f} times the largest source and target"
    assert math.prod(shards.read(folder / "grown").specs["lm_head.weight"].shape) == vocab * 2 * residual


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_proc
def test_growth_streams(tmp_path: Path) -> None:
    check_memory(tmp_path, "zero_pad", vocab=40_000, residual=512, ffn=1024)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("name", ["zero_pad", "hyperclone"])
def test_growth_of_gigabytes_streams(name: str, tmp_path: Path) -> None:
    check_memory(tmp_path, name, vocab=150_000, residual=1024, ffn=2048)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def growbench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line in this process: exit code, stdout and stderr."""
    from growbench import cli

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["growbench", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return run


def test_the_command_grows_and_says_how_far_logits_moved(
    growbench: Any, sources: dict[str, Path], tmp_path: Path
) -> None:
    (sources["gpt2"] / "tokenizer.json").write_text("{}")
    words = ["grow", str(sources["gpt2"]), "--strategy", "net2net", "--set", "noise=0", "--to", "ffn=64", "--json"]
    code, out, err = growbench(*words, "-o", str(tmp_path / "grown"))
    assert code in (0, None), err
    said = json.loads(out)
    assert said["sizes"] == {"ffn": "24 to 64"}
    assert said["difference"] < EXACT * said["largest_logit"]
    assert (tmp_path / "grown" / "tokenizer.json").read_text() == "{}"
    assert difference(sources["gpt2"], tmp_path / "grown") < EXACT


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--strategy", "zero_pda", "--to", "ffn=64"], "did you mean zero_pad?"),
        (["--strategy", "zero_pad", "--to", "fnn=64"], "no size 'fnn' to grow: did you mean ffn?"),
        (["--strategy", "zero_pad", "--to", "ffn"], "'ffn' has no value"),
        (["--strategy", "zero_pad", "--to", "ffn=many"], "ffn must be a whole number, not 'many'"),
        (
            ["--strategy", "zero_pad", "--to", "ffn=64", "--dtype", "bf16"],
            "unknown dtype 'bf16': did you mean bfloat16?",
        ),
        (["--strategy", "msg", "--to", "ffn=64"], "has a `grow` of its own"),
        (["--strategy", "scratch", "--to", "ffn=64"], "trains from scratch"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    words: list[str], sentence: str, growbench: Any, sources: dict[str, Path], tmp_path: Path
) -> None:
    code, out, err = growbench("grow", str(sources["llama"]), *words, "-o", str(tmp_path / "grown"))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "grown").exists()
