"""Store the ids that llama.cpp gives for many texts, so that our tokenizers can be tested without it.

Needs `pip install xllamacpp` (llama.cpp as a wheel) in any environment:

    python tests/data/make_tokenizer_ids.py --prompts FOLDER --model FILE.gguf --out tokenizer_ids_x.json.gz

FOLDER holds prompt files in JSON lines with "turns": humaneval (MIT), gsm8k (MIT), oasst and mt_bench
(Apache-2.0). All other texts are written or generated here.
"""

import argparse
import gzip
import importlib.metadata
import json
import random
import urllib.request
from pathlib import Path

PROMPT_FILES = {
    "humaneval_prompts.jsonl": 45,
    "gsm8k_test_200.jsonl": 40,
    "oasst_prompts.jsonl": 40,
    "mt_bench.jsonl": 25,
}
LONGEST = 500  # characters

WRITTEN = [
    # Sinhala, Nepali and other scripts whose characters take several tokens each
    "අද කාලගුණය ඉතා හොඳයි.",
    "මම පොතක් කියවමි, ඔබ ගීතයක් ගයන්න.",
    "කොළඹ නගරයේ සිට මහනුවරට දුම්රියෙන් යන්න පැය තුනක් ගතවේ.",
    "ශ්‍රී ලංකාවේ තේ ලොව පුරා ප්‍රසිද්ධයි!",
    "ඔබේ නම කුමක්ද? 2024 දී මම 15ක් ගත්තා.",
    "आज मौसम धेरै राम्रो छ।",
    "मेरो घर पहाडको फेदीमा छ, र त्यहाँ धेरै रूखहरू छन्।",
    "काठमाडौँबाट पोखरा जान सात घण्टा लाग्छ।",
    "तपाईंको नाम के हो? मलाई १२३ रुपैयाँ चाहियो।",
    "विद्यार्थीहरूले किताब पढिरहेका छन्; शिक्षकले हेर्दै हुनुहुन्छ।",
    "今天天气很好，我们去公园散步吧。",
    "東京都の人口は約1400万人です。カタカナとひらがな。",
    "한국어 문장을 토큰으로 나누어 봅시다. 대한민국 2002년",
    "Привет, мир! Как дела у вас сегодня?",
    "Καλημέρα κόσμε, τι κάνεις;",
    "مرحبا بالعالم ٣٤٥ كتاب",
    "שלום עולם, מה שלומך?",
    "สวัสดีชาวโลก ๑๒๓",
    "Xin chào thế giới, tiếng Việt có dấu.",
    "Ünïcödé ñandú façade naïve Ærøskøbing Łódź İstanbul ǅ ŉ ß",
    "e\u0301 n\u0303 a\u030a decomposed, é ñ å composed",
    "𝓜𝓪𝓽𝓱 𝔸𝔹ℂ 𝟙𝟚𝟛 ∀x∈ℝ: ∃y ≥ x², ½ ⅓ Ⅷ ① ㊗ ﷽",
    "Emoji: 😀😃 👍🏽 👩‍👩‍👧‍👦 🇱🇰🇳🇵 ❤️ ☕️ 1️⃣",
    "mixed 🧪混合テスト🧬 शब्द and words🚀🚀🚀",
    # numbers
    "0 1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "3.14159 -2.5e-10 1,000,000 $99.99 50% 0xDEADBEEF 1e5 12:34:56 2024-02-29",
    "١٢٣ १२३ ๑๒๓ １２３ ²³ x2y3z4 v1.2.3-rc4",
    "007 0000 1 000 000 +94 77 123 4567",
    # contractions
    "I'm you're he's we've they'll I'd don't won't 'tis rock'n'roll",
    "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T 'S 'T 'RE",
    "it’s don’t l’été ‘quoted’ “double” 'single' \"double\"",
    "'s't're've'm'll'd 'sample 'text 'really 'very 'mine 'llama 'door",
    # whitespace
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " \n ",
    "a b  c   d    e     f",
    "trailing   ",
    "   leading",
    "line\nline\n\nline\n\n\nline\n",
    "windows\r\nlines\r\n\r\nend\r\n",
    "tabs\tand\t\ttabs \t mixed\n\t\tindent",
    "a \n b\n  c \n\n   d  \n",
    "\u00a0nbsp\u00a0\u00a0two\u2003em\u3000ideographic\u200bzero\u0085next\u2028line",
    "vertical\x0btab form\x0cfeed bell\x07 del\x7f",
    "word\u00a0 word \u00a0word",
    " \u3000 \u3000",
    "x\n \n  \n   y",
    # code
    "def f(x):\n    return x ** 2  # square\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; } // sum",
    "SELECT * FROM t WHERE a = 'it''s' AND b >= 10;",
    '<html><body class="x">&nbsp;</body></html>',
    '{"key": [1, 2.5, null, true], "k2": {"a": "b\\n"}}',
    "if __name__ == '__main__':\r\n    main()\r\n",
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case-name path/to/file.txt",
    "!!!??? ... --- === ### *** ___ ~~~ ``` >>> <<< ::: ;;;",
    "#include <stdio.h>\n#define MAX(a,b) ((a)>(b)?(a):(b))\n",
    "a+b=c; a&&b||!c; x->y; x::y; x=>y; @decorator $var %fmt ^caret |pipe\\back",
    "https://example.org/a?b=c&d=%20e#frag user@example.org",
    "\\frac{a}{b} \\alpha_{1}^{2} $$x$$",
    # special tokens written out, whole, cut and nested
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "text<|endoftext|>text",
    " <|im_end|> spaced <|im_end|>",
    "<|im_start|><|im_start|><|im_end|>",
    "<|im_start|",
    "<|im_<|im_end|>end|>",
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    "<|fim_prefix|>def f():<|fim_suffix|>\n<|fim_middle|>",
    "<repo_name>x<file_sep>y<jupyter_start>z<empty_output>",
    # (no end-of-sentence tag here: llama.cpp takes it for a control token in any vocabulary that spells it)
    "<|IM_END|> <| im_end |> <s> [INST] <unk> <pad>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "[PAD151700] [PAD0]",
    # odd characters
    "\ufeffbyte order mark",
    "\ufffd replacement \ufffd\ufffd",
    "private \ue000\uf8ff use, unassigned \u0378 \U000e0001 \U0010fffd",
    "\u200d\u200c\u2060 joiners \u202eright to left\u202c",
    "ﬁ ligature ﬀ ﬃ Ａｂｃ fullwidth ｶﾅ halfwidth",
    "ʰ modifier ʼ ˈ combining \u0301alone \u093f\u0dd2",
]

ALPHABETS = [
    "abcdefghij",
    "ABCdef ",
    "  \n\t",
    "0123456789",
    "'’stmdvrel ",
    '.,;:!?-_()[]{}<>|/\\*&^%$#@~`"=+',
    "äöüßéèçñøåıİ",
    "абвгдеж АБВ",
    "අආකඛගතදනපමයරලවසහළෆ\u0dca\u0dd2\u0dd4 ",
    "अआइकखगतदनपमयरलवसह\u093e\u093f\u094d०१२ ",
    "你好世界中文测试。，",
    "あいうカタナー漢字",
    "😀🎉👍🏽\u200d❤\ufe0f🇳🇵",
    "\u00a0\u2003\u3000\r\n ",
    "١٢３４²½Ⅷ",
]


def generated(count: int, seed: int = 20240607) -> list[str]:
    """Random mixtures: runs from a few alphabets each, so that every pair of kinds meets somewhere."""
    dice = random.Random(seed)
    texts = []
    for _ in range(count):
        chosen = dice.sample(ALPHABETS, k=dice.randint(2, 5))
        runs = ("".join(dice.choices(dice.choice(chosen), k=dice.randint(1, 6))) for _ in range(dice.randint(3, 18)))
        texts.append("".join(runs))
    return texts


def prompts(folder: Path) -> list[str]:
    """The first turns of the prompt files, cut to a bearable length."""
    texts = []
    for name, count in PROMPT_FILES.items():
        lines = (folder / name).read_text(encoding="utf-8").rstrip().split("\n")
        stride = max(1, len(lines) // count)
        texts += [json.loads(line)["turns"][0][:LONGEST] for line in lines[::stride][:count]]
    return texts


def llama_cpp_ids(model: Path, texts: list[str]) -> list[list[int]]:
    """Tokenize with llama.cpp, special tokens recognised, beginning and end added as the model asks."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx, settings.n_parallel, settings.warmup = 256, 1, False
    server = xllamacpp.Server(settings)
    ids = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            ids.append(json.load(answer)["tokens"])
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    texts = [*WRITTEN, *generated(130), *prompts(options.prompts)]
    record = {
        "made_with": f"xllamacpp {importlib.metadata.version('xllamacpp')}",
        "model": options.model.name,
        "texts": texts,
        "ids": llama_cpp_ids(options.model, texts),
    }
    packed = gzip.compress(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)
    options.out.write_bytes(packed)
    print(f"{len(texts)} texts, {len(packed)} bytes in {options.out}")


if __name__ == "__main__":
    main()
