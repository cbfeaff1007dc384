"""Build a tokenizer from a GGUF file's metadata.

Texts are split as in llama.cpp, with a table of the pre-tokenizers that files name.  An unknown name is refused,
because a wrong split gives slightly wrong ids without any error.  As in llama.cpp, texts are not normalised first; a
folder's own tokenizer may compose decomposed accents (Qwen's does).
"""

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from outrider.models.files.end_tokens import named_ends
from outrider.models.files.gguf import GGUFFile
from outrider.models.files.hf_tokenizer import Template
from outrider.models.files.tokenizer import Tokenizer

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

# transformers' names of special tokens, as templates use them -> metadata key.
_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


@dataclass(frozen=True)
class Splitter:
    """How a text is split before merging: patterns, each applied to the pieces of the one before."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a whole token is taken as it is
    add_bos: bool = False  # unless the file says otherwise


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_BLANKS = r"\s+(?!\S)|\s+"
# Like llama.cpp, distinguish upper and lower case only in ASCII.
_UPPER = r"(?:(?=\p{L})[^a-z])"
_LOWER = r"(?:(?=\p{L})[^A-Z])"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED = rf"{_LEAD}{_UPPER}*{_LOWER}+", rf"{_LEAD}{_UPPER}+{_LOWER}*"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _any(*patterns: str) -> str:
    """Join alternatives; the first that matches wins."""
    return "|".join(patterns)


_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_MODERN = _any(_CONTRACTION, _WORD, _THREE_DIGITS, _SYMBOLS, _LINES, _BLANKS)
_PUNCTUATED = r" ?[^(\s|.,!?…。，、।۔،)]+"

_WHOLE = Splitter((_GPT2,))
_BY_DIGIT = Splitter((_DIGIT, _GPT2))
_QWEN2 = Splitter((_any(_CONTRACTION, _WORD, _DIGIT, _SYMBOLS, _LINES, _BLANKS),))
_QWEN35 = Splitter(
    (
        _any(
            _CONTRACTION,
            r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
            _DIGIT,
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
            _LINES,
            _BLANKS,
        ),
    )
)
_LLAMA3 = Splitter((_MODERN,), ignore_merges=True, add_bos=True)
_BY_THREE = Splitter((_MODERN,))
_TEKKEN = Splitter((_any(*_CASED, _DIGIT, _SYMBOLS_AND_SLASHES, _LINES, _BLANKS),), ignore_merges=True, add_bos=True)
_GPT4O = Splitter(
    (
        _any(
            *(f"{pattern}{_CONTRACTION}?" for pattern in _CASED),
            _THREE_DIGITS,
            _SYMBOLS_AND_SLASHES,
            _LINES,
            _BLANKS,
        ),
    )
)
_DEEPSEEK3 = Splitter(
    (
        _THREE_DIGITS,
        "[一-龥\u3040-ゟ゠-ヿ]+",
        _any(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r" ?[\p{P}\p{S}]+[\r\n]*",
            _LINES,
            _BLANKS,
        ),
    )
)
_SEED_CODER = Splitter((_any(_CONTRACTION, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _BLANKS),))
_BAILING = Splitter((_any(_CONTRACTION, _WORD, _DIGIT, _SYMBOLS, r"\s*[\r\n]", _BLANKS),))
_FALCON = Splitter((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))
_DEFAULT = Splitter((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_BLOOM = Splitter((_PUNCTUATED,))
_VIKING = Splitter((_PUNCTUATED, _DIGIT))

# tokenizer.ggml.pre -> how it splits; each one compared with llama.cpp's ids on the texts in tests/data.
SPLITTERS: dict[str, Splitter] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _WHOLE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _BY_DIGIT),
    **dict.fromkeys(("exaone", "minerva-7b"), _BY_DIGIT),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx", "chatglm-bpe"), _BY_THREE),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _BLOOM),
    "glm4": Splitter((_MODERN,), ignore_merges=True),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    "seed-coder": _SEED_CODER,
    "bailingmoe": _BAILING,
    "falcon": _FALCON,
    "viking": _VIKING,
    "default": _DEFAULT,
}


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        ModelError: its tokenizer or pre-tokenizer is not supported, or its lists disagree.
    """
    model = file.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise file.fail(
            f"tokenizer {model!r} is not supported from GGUF yet, only byte-level BPE ('gpt2'); "
            "use the safetensors folder"
        )
    splitter = _splitter(file)
    tokens, kinds = _real_tokens(file)
    backend = _byte_level_bpe(file, tokens, splitter)
    ends = named_ends(tokens)
    kinds = [_CONTROL if token in ends else kind for token, kind in zip(tokens, kinds, strict=True)]
    for kind, special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == kind
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    _frame(file, backend, splitter, tokens)
    named = {_special_id(file, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom")}
    return Tokenizer(
        backend,
        name=file.path.stem,
        bos_id=_special_id(file, "bos_token_id", len(tokens)),
        eos_ids={i for i, token in enumerate(tokens) if token in ends}.union(i for i in named if i is not None),
        special_tokens=_special_tokens(file),
        chat_template=_chat_template(file),
    )


def _special_tokens(file: GGUFFile) -> dict[str, str]:
    """The special tokens a file names; some files name a padding token that does not exist."""
    tokens = file.texts("tokenizer.ggml.tokens")
    ids = {name: file.metadata.get(key) for name, key in _SPECIAL_TOKENS.items()}
    return {name: tokens[i] for name, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _chat_template(file: GGUFFile) -> Template | None:
    """A file's chat template, or all of them by name if there are several."""
    default = file.text("tokenizer.chat_template", "")
    names = file.texts("tokenizer.chat_templates") if "tokenizer.chat_templates" in file.metadata else []
    others = {name: file.text(f"tokenizer.chat_template.{name}") for name in names}
    return {"default": default, **others} if default and others else default or others or None


def _special_id(file: GGUFFile, name: str, count: int) -> int | None:
    """Id of a special token; None if the file names none."""
    key = f"tokenizer.ggml.{name}"
    if key not in file.metadata:
        return None
    token_id = file.integer(key)
    if not 0 <= token_id < count:
        raise file.fail(f"the metadata's {key!r} is {token_id}, outside the {count} tokens")
    return token_id


def _splitter(file: GGUFFile) -> Splitter:
    name = file.text("tokenizer.ggml.pre")
    if name not in SPLITTERS:
        raise file.fail(f"pre-tokenizer {name!r} is not supported from GGUF yet; use the safetensors folder")
    return SPLITTERS[name]


def _real_tokens(file: GGUFFile) -> tuple[list[str], list[int]]:
    """Read tokens and their kinds, without unused tokens at the end of the list."""
    tokens = file.texts("tokenizer.ggml.tokens")
    kinds = list(file.numbers("tokenizer.ggml.token_type"))
    if len(tokens) != len(kinds):
        raise file.fail(f"has {len(tokens)} tokens but {len(kinds)} token types")
    count = len(tokens)
    while count and kinds[count - 1] == _UNUSED:
        count -= 1
    return tokens[:count], kinds[:count]


def _byte_level_bpe(file: GGUFFile, tokens: list[str], splitter: Splitter) -> Backend:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise file.fail("names a token twice")
    merges = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, separator, right = merge.partition(" ")
        if not separator:
            raise file.fail(f"has the merge {merge!r}, which is not two pieces")
        merges.append((left, right))
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=splitter.ignore_merges))
    except Exception as error:  # the library raises nothing more precise
        raise file.fail(f"its merges do not fit its tokens: {error}") from error
    split = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitter.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _frame(file: GGUFFile, backend: Backend, splitter: Splitter, tokens: list[str]) -> None:
    """Make `encode` add the beginning and end tokens that the file requires."""
    wanted = {
        "bos": file.flag("tokenizer.ggml.add_bos_token", splitter.add_bos),
        "eos": file.flag("tokenizer.ggml.add_eos_token", False),
    }
    marks = []
    for name, add in wanted.items():
        token_id = _special_id(file, f"{name}_token_id", len(tokens))
        if add and token_id is None:
            raise file.fail(f"asks for a {name} token around every text but names none")
        if add and token_id is not None:
            marks.append({"id": name, "ids": [token_id], "tokens": [tokens[token_id]]})
    before = [mark["id"] for mark in marks if mark["id"] == "bos"]
    after = [mark["id"] for mark in marks if mark["id"] == "eos"]
    if marks:
        backend.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=marks)
