"""The tables of families name every tensor that transformers saves, and what does not fit one is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
import torch
from safetensors.torch import save_file

from growbench import families, pretrained, shards
from growbench.families import tokenformer

WORDS = [*checkpoints.HF, "tokenformer"]


@pytest.mark.parametrize("word", WORDS)
def test_tables_name_every_tensor_of_its_shape(word: str, tmp_path: Path) -> None:
    found = pretrained.read(checkpoints.make(word, tmp_path / "source"))
    held = checkpoints.tensors(tmp_path / "source")
    assert {found.named[name]: stored.shape for name, stored in found.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in held.items()
    }


@pytest.mark.parametrize("architecture", sorted(families.families()))
def test_every_axis_is_written_and_read(architecture: str) -> None:
    """An axis that nothing reads, or nothing writes, is a slip in a table."""
    labels = " ".join(label for label in families.find(architecture).tensors.values() if not label.startswith("="))
    words = set(labels.replace("(", "").replace(")", "").split())
    for name in {word.rstrip("*") for word in words} - {"vocab", "position", "qkv", "width"}:
        assert {name, f"{name}*"} <= words, name


def test_readers_of_norms_read_the_residual_stream() -> None:
    for family in families.families().values():
        for readers in family.norms.values():
            assert all("residual*" in family.tensors[reader] for reader in readers)


def test_names_without_prefix_and_old_buffers_are_read(tmp_path: Path) -> None:
    """As in the files of GPT-2 on the hub."""
    folder = checkpoints.make("gpt2", tmp_path / "source")
    named = {name.removeprefix("transformer."): t for name, t in checkpoints.tensors(folder).items()}
    save_file(named | {"h.0.attn.bias": torch.ones(1, 1, 32, 32)}, folder / shards.SINGLE)
    found = pretrained.read(folder)
    assert set(found.named.values()) == set(named)


GOLDEN = json.loads((Path(__file__).parent / "pattention.json").read_text())["cases"]


@pytest.mark.parametrize("case", [case for case in GOLDEN if case["activation"] == "l2_norm_gelu"])
def test_parameter_tokens_attend_as_published(case: dict[str, list[float]]) -> None:
    x, keys, values, y = (torch.tensor(case[name], dtype=torch.float64) for name in ("x", "keys", "values", "y"))
    assert torch.allclose(tokenformer.pattention(x, keys, values), y, rtol=1e-12, atol=1e-12)


# --- refusals --------------------------------------------------------------------------------------------------------


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.router.weight"] = torch.zeros(2, 2)


def cut(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"][:-1].clone()


def recast(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].half()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, "lacks model.layers.1.mlp.up_proj.weight"),
        (add, "holds model.layers.1.mlp.router.weight"),
        (cut, r"up_proj.weight has shape \[23, 16\], and by the configuration \[24, 16\]"),
        (recast, "model.norm.weight has dtype float16, and by the configuration float64: give the dtype .* --dtype"),
    ],
)
def test_tensors_that_disagree_with_the_configuration_are_named(
    change: Callable[[dict[str, torch.Tensor]], None], words: str, tmp_path: Path
) -> None:
    folder = checkpoints.make("llama", tmp_path / "source")
    changed = dict(checkpoints.tensors(folder))
    change(changed)
    save_file(changed, folder / shards.SINGLE)
    with pytest.raises(ValueError, match=words):
        pretrained.read(folder)


def test_an_unknown_architecture_is_named_with_those_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))
    with pytest.raises(ValueError, match="'BertModel': known are GPT2LMHeadModel, GPTNeoXForCausalLM, Llama"):
        pretrained.read(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_pickle_is_refused_with_the_conversion(name: str, tmp_path: Path) -> None:
    folder = checkpoints.make("llama", tmp_path / "source")
    (folder / shards.SINGLE).rename(folder / name)
    with pytest.raises(ValueError, match=rf"{name} is a pickle.*convert .* python -c .*save_pretrained"):
        pretrained.read(folder)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "is no JSON"),
        (lambda folder: (folder / shards.SINGLE).unlink(), "has no model.safetensors"),
        (lambda folder: (folder / shards.SINGLE).write_bytes(b"\0" * 40), "is no whole safetensors file"),
    ],
)
def test_folders_that_are_not_whole_are_refused(spoil: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    folder = checkpoints.make("llama", tmp_path / "source")
    spoil(folder)
    with pytest.raises(ValueError, match=words):
        pretrained.read(folder)


def test_an_index_that_names_what_no_file_holds_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.make("llama", tmp_path / "source")
    index = {"weight_map": {"model.norm.weight": shards.SINGLE, "absent.weight": shards.SINGLE}}
    (folder / shards.INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"absent\.weight is in model\.safetensors\.index\.json"):
        pretrained.read(folder)
