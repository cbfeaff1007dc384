"""One tokenizer class for all models, from Hugging Face folders and GGUF files."""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import tokenizers

from outrider.errors import OutriderError, RequestError
from outrider.grammar import GrammarCompiler
from outrider.models.files.chat_template import ChatTemplate, Message
from outrider.models.files.encoding import ids_of, text_of
from outrider.models.files.hf_tokenizer import Template
from outrider.models.files.literal_text import LiteralText, Told

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class DetokenizerStream(Protocol):
    """Text that grows token by token."""

    def push(self, token_id: int) -> str:
        """Add an id and return the text it completes; "" inside an incomplete character."""

    def finish(self) -> str:
        """Return what an incomplete character at the end decodes to (U+FFFD), or ""."""

    def fork(self) -> "DetokenizerStream":
        """Return an independent stream that continues from here."""


@dataclass(frozen=True)
class VocabularyMatch:
    """Relation of two vocabularies; `shared` is the number of leading ids that mean the same token in both."""

    kind: Literal["equal", "padded", "different"]
    shared: int
    reason: str


class Tokenizer:
    """Text to ids and back, special ids, and the chat template."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        name: str,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: Template | None = None,
    ) -> None:
        """Make a tokenizer.

        ``special_tokens`` are those that templates may use by name, such as ``eos_token``.  ``chat_template`` is
        several by name if there is one for tools.  ``name`` is the model's, for messages.
        """
        self.backend = backend
        self.name = name
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.grammars = GrammarCompiler(self)
        """Compiles grammars for this vocabulary, and reads it with the first."""
        self._byte_level = _decoder_names(backend) == {"ByteLevel"}
        self._byte_fallback = "ByteFallback" in _decoder_names(backend)

    def __repr__(self) -> str:
        """The model's name and the vocabulary's size."""
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size})"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Convert text to ids; special tokens in the text become their ids.

        Raises:
            RequestError: the text holds half a surrogate pair, which is no character.
        """
        _check_unicode(text)
        return ids_of(self.backend, text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Write a conversation with the chat template and convert it to ids.

        Only the template's own special tokens become their ids.  Their spellings in users' strings stay text: in
        messages, in tools given as dicts, and in ``template_kwargs`` other than the model's named special tokens.

        Arguments and errors are those of :meth:`apply_chat_template`.

        Raises:
            RequestError: also if a text cannot be told from special tokens.
        """
        named = {name: value for name, value in (template_kwargs or {}).items() if name in self.special_tokens}
        values = {name: value for name, value in (template_kwargs or {}).items() if name not in named}
        given = Told(messages, tools, values)
        told = self.literal_text.mark(given, _joined(self.chat_template))
        try:
            text = self.apply_chat_template(
                told.messages,
                tools=told.tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs={**told.values, **named},
            )
        except OutriderError as error:
            raise type(error)(LiteralText.without_marks(str(error))) from error
        if told is given:
            return self.encode(text, add_special_tokens=False)
        _check_unicode(text)
        return self.literal_text.encode(text)

    @cached_property
    def literal_text(self) -> LiteralText:
        """What keeps spellings of special tokens in users' strings text."""
        return LiteralText(self.backend)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Convert ids to text; ids past the vocabulary (padding rows of the model) add nothing."""
        return text_of(self.backend, ids, skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True) -> DetokenizerStream:
        """Start an incremental `decode`."""
        kind = _ByteStream if self._byte_level else _WindowStream
        return kind(self, self.special_ids if skip_special_tokens else frozenset())

    @property
    def template_text(self) -> str:
        """The chat templates as one text, for those who look for what they write; empty if there is none."""
        return _joined(self.chat_template)

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """Every real id with its token as the vocabulary spells it."""
        return {token_id: token for token, token_id in self.backend.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """Highest real id plus one; a model's logits may have more columns."""
        return max(self.vocabulary, default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` removes."""
        return frozenset(self.special_spellings.values())

    @cached_property
    def special_spellings(self) -> dict[str, int]:
        """The same ids by the tokens' spellings."""
        return {token.content: i for i, token in self.backend.get_added_tokens_decoder().items() if token.special}

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token inside a text; b"" for an id that is not in the vocabulary."""
        spelled = self._spelled.get(token_id)
        if spelled is None:
            spelled = self._spelled[token_id] = self._spell(token_id)
        return spelled

    @cached_property
    def _spelled(self) -> dict[int, bytes]:
        """Cached bytes of tokens; every emitted token needs them."""
        return {}

    def _spell(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(token)
        return self.byte_piece(token_id) or token.replace("▁", " ").encode()

    def token_text(self, token_id: int) -> str:
        """A token for people; U+FFFD stands for part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def byte_piece(self, token_id: int) -> bytes:
        """The byte of a token that spells a single byte, which may be part of a character; otherwise b""."""
        token = self.backend.id_to_token(token_id) if self._byte_fallback else None
        match = _BYTE_TOKEN.fullmatch(token) if token is not None else None
        return bytes([int(match[1], 16)]) if match else b""

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a conversation in the form that the model was trained on, as transformers does.

        Args:
            messages: ``{"role": …, "content": …}`` in order; a content is a string, or a list of parts
                ``{"type": "text", "text": …}``, which become one string if the template needs that.
            tools: JSON schemas of functions, or functions with type hints and a docstring.
            add_generation_prompt: begin the model's answer.
            continue_final_message: leave the last message open for the model to continue; a string names another of its
                fields than ``content``.
            template_kwargs: other values for the template, such as ``enable_thinking`` or ``documents``.

        Raises:
            ModelError: the model has no chat template, or it cannot be compiled or run.
            RequestError: the template refuses these messages or fails on them, or a part is no text.
        """
        return ChatTemplate(self.name, self.chat_template, self.special_tokens).write(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of every (id, token) pair; equal exactly if the vocabularies are equal."""
        digest = hashlib.sha256()
        for token_id, token in sorted(self.vocabulary.items()):
            digest.update(f"{token_id} {len(token)} {token}\n".encode(errors="surrogatepass"))
        return digest.hexdigest()

    def compare(self, other: "Tokenizer") -> VocabularyMatch:
        """Compare two vocabularies; `reason` names both sizes and the first different id."""
        sizes = f"{self.name} has {self.vocab_size} tokens, {other.name} has {other.vocab_size}"
        common = min(self.vocab_size, other.vocab_size)
        if self.fingerprint == other.fingerprint:
            return VocabularyMatch("equal", common, sizes)
        for token_id in range(common):
            mine, theirs = self.vocabulary.get(token_id), other.vocabulary.get(token_id)
            if mine != theirs:
                difference = f"id {token_id} is {mine!r} in {self.name} and {theirs!r} in {other.name}"
                return VocabularyMatch("different", token_id, f"{sizes}; {difference}")
        return VocabularyMatch("padded", common, f"{sizes}; the first {common} are the same")


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: half a surrogate pair at character {error.start}; was it read from "
            "bytes that are not UTF-8?"
        ) from None


def _joined(template: Template | None) -> str:
    """The text of all of a model's templates."""
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


class _ByteStream:
    """For byte-level vocabularies: exact, because decoding joins bytes."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], pending: bytes = b"") -> None:
        self._tokenizer, self._skipped = tokenizer, skipped
        self._pending = pending
        """Bytes of an incomplete character."""

    def push(self, token_id: int) -> str:
        return "" if token_id in self._skipped else self._decode(self._tokenizer.token_bytes(token_id), final=False)

    def finish(self) -> str:
        return self._decode(b"", final=True)

    def fork(self) -> "_ByteStream":
        return _ByteStream(self._tokenizer, self._skipped, self._pending)

    def _decode(self, piece: bytes, final: bool) -> str:
        spelled = self._pending + piece
        text, used = codecs.utf_8_decode(spelled, "replace", final)
        self._pending = spelled[used:]
        return text


class _WindowStream:
    """For all others: decode the last printed tokens again with the new ones, and return the difference."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._printed: list[int] = []
        self._pending: list[int] = []
        self._character: codecs.IncrementalDecoder = codecs.getincrementaldecoder("utf-8")()
        """Decoder with the bytes of an incomplete character."""

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        return "" if self._is_cut(self._tokenizer.byte_piece(token_id)) else self.finish()

    def finish(self) -> str:
        before = self._tokenizer.decode(self._printed, skip_special_tokens=False)
        text = self._tokenizer.decode(self._printed + self._pending, skip_special_tokens=False)
        if len(text) <= len(before):
            return ""
        self._printed, self._pending = self._pending, []
        return text[len(before) :]

    def _is_cut(self, piece: bytes) -> bool:
        """Whether a character is incomplete after this byte; b"" or a wrong byte ends it."""
        try:
            self._character.decode(piece, final=not piece)
        except UnicodeDecodeError:
            self._character.reset()
        return bool(self._character.getstate()[0])

    def fork(self) -> "_WindowStream":
        twin = _WindowStream(self._tokenizer, self._skipped)
        twin._printed, twin._pending = self._printed, self._pending.copy()
        twin._character.setstate(self._character.getstate())
        return twin


def _decoder_names(backend: tokenizers.Tokenizer) -> set[str]:
    """Types of the steps of a tokenizer's decoder."""
    if backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {step["type"] for step in state.get("decoders", [state])}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes spell themselves, others use the characters from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; a foreign character (of an added token) is taken literally."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
