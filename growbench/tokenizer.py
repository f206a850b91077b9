"""Tokenizers: bytes, a file of the library `tokenizers`, a folder of transformers; and BPE, trained here.

Each turns a text into tokens below `vocab`; one of these, `end`, no text gives, and it ends each document of a stream.
Bits per byte compare across them, for a text's bytes are counted before it is tokenised.
"""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from growbench.task import Tokens

BYTES = "bytes"
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What the token that ends a document is called, in the order in which it is looked for."""


def narrowest(vocab: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest unsigned dtype that tells so many tokens apart, little-endian."""
    return np.dtype("<u1" if vocab <= 2**8 else "<u2" if vocab <= 2**16 else "<u4")


class Tokenizer(ABC):
    """Texts to tokens and back."""

    vocab: int
    end: int

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells it from another: equal identities, equal tokens."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, without the one that ends it."""

    @abstractmethod
    def decode(self, tokens: npt.NDArray[Any]) -> str:
        """The text of a document's tokens."""


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """UTF-8, and the byte 255, which no UTF-8 has, ends a document."""

    vocab: int = 256
    end: int = 255

    @property
    def identity(self) -> str:
        return BYTES

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, tokens: npt.NDArray[Any]) -> str:
        return tokens.astype(np.uint8).tobytes().decode()


@dataclass(frozen=True)
class Library(Tokenizer):
    """A tokenizer of the library `tokenizers`, as the JSON that its file holds."""

    json: str
    vocab: int
    end: int

    @property
    def identity(self) -> str:
        return f"{hashlib.sha256(self.json.encode()).hexdigest()} {self.end}"

    @cached_property
    def _made(self) -> Any:
        made = _tokenizers().Tokenizer.from_str(self.json)
        made.encode_special_tokens = True  # a text that spells the end of a document does not end it
        made.no_truncation()
        made.no_padding()
        return made

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        dtype = narrowest(self.vocab)
        found = self._made.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype) for one in found]

    def decode(self, tokens: npt.NDArray[Any]) -> str:
        text: str = self._made.decode(tokens.tolist(), skip_special_tokens=False)
        return text


def read(name: str, end: str = "") -> Tokenizer:
    """The tokenizer of a name: bytes, a file, a folder, or hub:NAME[@REVISION]. ValueError where there is none.

    end: what the token is called that ends a document, where it is none of ENDS or of the folder's own.
    """
    if name == BYTES:
        return Bytes()
    path = Path(os.path.expanduser(name))
    if name.startswith("hub:") or path.is_dir():
        return _pretrained(name, end)
    try:
        text = path.read_text(encoding="utf-8")
        made = _tokenizers().Tokenizer.from_str(text)
    except OSError as error:
        raise ValueError(
            f"there is no tokenizer {name} ({error.strerror}): write bytes, the path of a file that the library "
            "tokenizers wrote (`growbench data train-bpe` makes one), or a folder of transformers"
        ) from None
    except Exception as error:  # the library has no class for what it cannot read
        raise ValueError(f"{name} is no file of the library tokenizers: {error}") from None
    return _library(made, name, (end,) if end else ENDS)


def train_bpe(texts: Iterable[str], vocab: int) -> str:
    """A byte-level BPE of so many tokens, `<|endoftext|>` the last, as JSON; ValueError where vocab is below 257."""
    if vocab < 257:
        raise ValueError(f"a BPE over bytes has 256 tokens and one that ends a document: give 257 or more, not {vocab}")
    library = _tokenizers()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=vocab - 1, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.add_special_tokens([ENDS[0]])
    text: str = made.to_str(pretty=True)
    return text


def _library(made: Any, name: str, ends: Sequence[str]) -> Library:
    """What is needed of a tokenizer; ValueError where no token ends a document."""
    numbers = {word: made.token_to_id(word) for word in ends}
    end = next((number for number in numbers.values() if number is not None), None)
    if end is None:
        raise ValueError(f"{name} has no token {' or '.join(ends)} to end a document: name the one to use with end")
    return Library(json=made.to_str(), vocab=1 + max(made.get_vocab().values()), end=end)


def _pretrained(name: str, end: str) -> Library:
    """The tokenizer of a transformers folder, or of the hub, where it is downloaded."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(f"{name} needs transformers: pip install 'growbench[hub]'") from None
    repository, _, revision = name.removeprefix("hub:").partition("@") if name.startswith("hub:") else (name, "", "")
    try:
        found = AutoTokenizer.from_pretrained(os.path.expanduser(repository), revision=revision or "main")
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ValueError(f"{name} holds no tokenizer that transformers reads: {str(error).splitlines()[0]}") from None
    made = getattr(found, "backend_tokenizer", None)
    if made is None:
        raise ValueError(f"{name} is a tokenizer written in Python: convert it to a tokenizer.json with transformers")
    own = found.eos_token
    return _library(made, name, (end,) if end else (str(own), *ENDS) if own else ENDS)


def _tokenizers() -> ModuleType:
    try:
        import tokenizers
    except ImportError:
        raise ValueError("a tokenizer other than bytes needs a library: pip install 'growbench[hub]'") from None
    return tokenizers
