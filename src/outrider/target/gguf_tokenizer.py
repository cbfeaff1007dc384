"""Build a tokenizer straight from a GGUF file's metadata.

Texts are split the way llama.cpp splits them: the pre-tokenizer the file names is looked up in one table, and
a name that is not there is refused, because a wrong split gives slightly wrong ids and no error anywhere.
"""

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from outrider.target.gguf import GGUFFile
from outrider.target.tokenizer import Tokenizer

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

# Control tokens that end a turn or a text in the model families that use them. A GGUF file names one end of
# sequence; instruct models have a second (Qwen: <|im_end|> and <|endoftext|>), which folders keep in
# generation_config.json.
_END_TOKENS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|eot|>"}
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class Splitter:
    """How a text is cut before merging: patterns, each applied to the pieces the one before left."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a whole token is taken as it is
    add_bos: bool = False  # unless the file says otherwise


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def _modern(digits: str) -> str:
    """Write the pattern that started with GPT-4, which differs between models in how digits are grouped."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_WHOLE_GPT2 = Splitter((_GPT2,))
_SINGLE_DIGITS = Splitter((r"\p{N}", _GPT2))
_QWEN2 = Splitter((_modern(r"\p{N}"),))
_LLAMA3 = Splitter((_modern(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_GPT4 = Splitter((_modern(r"\p{N}{1,3}"),))

SPLITTERS: dict[str, Splitter] = {
    "gpt-2": _WHOLE_GPT2,
    "phi-2": _WHOLE_GPT2,
    "mpt": _WHOLE_GPT2,
    "olmo": _WHOLE_GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _GPT4,
    "dbrx": _GPT4,
}


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Make the tokenizer a GGUF file describes.

    Raises:
        ModelError: the file's kind of tokenizer or its pre-tokenizer is not known, or its lists disagree.
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
    for kind, special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == kind
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    _frame(file, backend, splitter)
    bos = file.metadata.get("tokenizer.ggml.bos_token_id")
    named = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    ends = {i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k == _CONTROL and t in _END_TOKENS}
    return Tokenizer(
        backend,
        name=file.path.stem,
        bos_id=bos if isinstance(bos, int) and bos < len(tokens) else None,
        eos_ids=ends.union(i for i in named if isinstance(i, int) and i < len(tokens)),
        chat_template=file.text("tokenizer.chat_template", "") or None,
    )


def _splitter(file: GGUFFile) -> Splitter:
    name = file.text("tokenizer.ggml.pre")
    if name not in SPLITTERS:
        raise file.fail(f"pre-tokenizer {name!r} is not supported from GGUF yet; use the safetensors folder")
    return SPLITTERS[name]


def _real_tokens(file: GGUFFile) -> tuple[list[str], list[int]]:
    """Read tokens and their kinds, without the unused ones that only pad the end of the list."""
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


def _frame(file: GGUFFile, backend: Backend, splitter: Splitter) -> None:
    """Have `encode` put the beginning and end tokens the file asks for around a text."""
    wanted = {
        "bos": file.flag("tokenizer.ggml.add_bos_token", splitter.add_bos),
        "eos": file.flag("tokenizer.ggml.add_eos_token", False),
    }
    if not any(wanted.values()):
        return
    ids = {name: file.integer(f"tokenizer.ggml.{name}_token_id") for name, add in wanted.items() if add}
    marks = {name: (backend.id_to_token(token_id), token_id) for name, token_id in ids.items()}
    missing = [name for name, (token, _) in marks.items() if token is None]
    if missing:
        raise file.fail(f"its {missing[0]} token id {ids[missing[0]]} is not in the vocabulary")
    parts = [marks["bos"][0]] if "bos" in marks else []
    parts.append("$A")
    parts += [marks["eos"][0]] if "eos" in marks else []
    backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=list(marks.values()))
