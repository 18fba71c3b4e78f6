"""Five hundred texts that are hard for tokenizers, the same in every run.

The first are written by hand, by script and by peculiarity; the others join them in
pairs, so that different peculiarities are adjacent.
"""

import pathlib
import unicodedata

import numpy as np

SENTENCES = [
    "A man in a blue shirt is standing on a ladder, cleaning a window.",
    "Two young, White males are outside near many bushes!",
    "Several men in hard hats are operating a giant pulley system.",
    "It's 5 o'clock; don't you'd've gone if they'll let's?",
    "THE QUICK BROWN FOX jumps OVER the lazy dog",
    "McDonald's iPhone eBay LaTeX PyTorch",
    "Ein Mädchen mit Zöpfen überquert die große Straße – oder?",
    "Zwei weiße Männer aßen Grüße; STRASSE, Straße, ẞ, ﬁnanz",
    "Une fillette à l'école mangeait des œufs près du château, voilà.",
    "Où est-ce que vous êtes né ? « Là-bas », dit-elle…",
    "¿Dónde está el niño? ¡Allí! El señor bebió café con leche.",
    "Não há coração sem emoção; amanhã às três",
    "Žluťoučký kůň úpěl ďábelské ódy",
    "Zażółć gęślą jaźń, Łódź i Kraków",
    "Árvíztűrő tükörfúrógép",
    "Şişli'de ılık bir İstanbul akşamı, IĞDIR",
    "Smørrebrød på Ærø, Åre, þorn og ðæt",
    "Đường phố Việt Nam: phở, bánh mì, nước mắm",
    "Ελληνικά: ΟΔΥΣΣΕΥΣ, Οδυσσεύς, άνθρωπος; ᾠδή ΣΊΣΥΦΟΣ",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Їжак і ґава: об'єднання, Київ",
    "Ђорђе и Његош, љубав",
    "Հայերեն լեզու, Երևան։",
    "ქართული ენა, თბილისი",
    "ⴀⴁⴂ ႠႡႢ ᲐᲑᲒ",
    "שלום עולם! מה שלומך היום?",
    "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "مرحبا بالعالم، كيف حالك؟",
    "السَّلَامُ عَلَيْكُمْ وَرَحْمَةُ اللَّهِ",
    "ﷺ ﷲ ﻻ ﺍﻟﻌﺮﺑﻴﺔ",
    "سلام دنیا؛ می‌خواهم کتاب‌ها را",
    "اردو زبان میں ۱۲۳ ۴۵۶",
    "ܫܠܡܐ ߒߞߏ ދިވެހި",
    "नमस्ते दुनिया! यह एक परीक्षण है।",
    "क्षत्रिय ज्ञान श्रृंखला ॐ",
    "বাংলা ভাষা আমার প্রাণ।",
    "ਪੰਜਾਬੀ ਗੁਜਰાતી ଓଡ଼ିଆ",
    "தமிழ் மொழி வணக்கம்",
    "తెలుగు భాష ಕನ್ನಡ മലയാളം සිංහල",
    "สวัสดีชาวโลก วันนี้อากาศดี",
    "ສະບາຍດີ ជំរាបសួរ မင်္ဂလာပါ བོད་སྐད།",
    "አማርኛ ቋንቋ፡ ሰላም።",
    "ᏣᎳᎩ ꭰꭱ ᐃᓄᒃᑎᑐᑦ ᚠᚢᚦ ᚁᚂ",
    "今天天气很好，我们去公园吧。",
    "繁體中文測試：「臺灣」、香港！",
    "東京都に行きました。カタカナとひらがな、ﾊﾝｶｸ",
    "がぎぐげご ガギグゲゴ が パ",
    "한국어 문장을 나눕니다. 각",
    "안녕하세요 세계",
    "𠀀𠀁 㐀㐁 豈更 𪜀 𫝀 𫠠 𬺰 丽",
    "한국어와 English 그리고 日本語 mixed文字列",
    "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "𝕳𝖊𝖑𝖑𝖔 𝓌𝑜𝓇𝓁𝒹 ｆｕｌｌ　ｗｉｄｔｈ ⓒⓘⓡⓒⓛⓔ",
    "x² + y³ = z¹⁰, H₂O, ½ ¼ ⅓, №5, ™ ® © ℃ Ω Å",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, ∑ ∫ √2 ≈ 1.414 ≠ ∞",
    "£5 €10 ¥1000 $3.50 ₹99 ₿ ¢ ₩ ₽",
    "→ ← ↔ ⇒ ■ □ ● ★ ☆ ♥ ♪ ✓ ✗ ❄ ☂",
    "a‐b‑c‒d–e—f―g −h ⁓ 〜",
    "“double” ‘single’ „low“ ‚x‘ «a» ‹b› 『c』",
    "wait... what…?! (yes) [no] {maybe} <tag> & | \\ / ^ ~ ` _ = + * # @ %",
    "don''t ``quote'' ''x``",
    "!!! ??? ... --- ___ ### $$$ ///",
    "*bold* _it_ `code` ~~gone~~ # head",
]
NUMBERS = [
    "3.14159 1,000,000 1e-10 0x1F 007 12:30:45 2027-03-02 50% #1 1st 2nd",
    "١٢٣٤٥ १२३४५ ๑๒๓ 〇一二三 ⅣⅫ ①②③ ⒈⑴",
    "12345678901234567890123456789012345678901234567890",
    "+49 (0)30 123-456 ISBN 978-3-16-148410-0",
    "v1.2.3-rc.4+build.5 192.168.0.1 ::1",
    "1/2 3×4 5÷6 7±8 10^9",
]
ADDRESSES = [
    "https://example.org/a/b_c?d=e&f=%20g#h",
    "mailto:first.last+tag@mail.example.co.uk",
    "C:\\Users\\Name\\file.txt ~/.bashrc ./a/../b.tar.gz",
    "www.例え.jp/パス http://user:pw@host:8080/",
    "@name #hashtag #日本 $TICK r/sub u/me",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment",
    "SELECT * FROM t WHERE a<>'b' AND c>=1;",
    '<p class="x">a&nbsp;b &amp; c</p>',
    '{"key": [1, 2.5, null, true], "ключ": "値"}',
]
EMOJI = [
    "😀 😃😄 I ❤️ you 💔",
    "👍🏽👎🏿 🤷🏻‍♀️ 👩🏾‍💻",
    "👨‍👩‍👧‍👦 👩‍❤️‍💋‍👨 🏳️‍🌈 🏴‍☠️",
    "🇩🇪🇫🇷🇯🇵 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇺",
    "1️⃣2️⃣ #️⃣ *️⃣ ©️ ™️ ☺︎ ☺️",
    "great👍work🎉🎉🎉!!!",
    "🫠🫡🩷🪿 🧑‍🚒",
    "(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯ :-) ;) <3 ^_^",
]
BLANKS = [
    "",
    " ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    " \t\n\r ",
    " leading",
    "trailing ",
    "  two  spaces  here  ",
    "tab\tseparated\tvalues",
    "line one\nline two\r\nline three\rline four",
    "a\n\n\nb",
    "no\u00a0break\u202fspace\u2007here",
    "ideographic\u3000space\u3000全角",
    "en\u2002em\u2003thin\u2009hair\u200aquad\u2001ogham\u1680x",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom",
    "word\u2060joiner soft\u00adhyphen mongolian\u180evowel",
    "line\u2028separator paragraph\u2029separator next\u0085line",
    "vertical\x0btab form\x0cfeed",
    "\u200b",
    "\u00a0",
    "\u3000 \u2003",
    "▁under ▁ block ▁▁",
    "Ġbyte Ċ sign",
    "##ing # #a a## ##",
]
CONTROLS = [
    "nul\x00in\x00side",
    "\x00",
    "bell\x07 escape\x1b[31mred\x1b[0m",
    "back\x08space del\x7f c1\x80\x9f",
    "replacement\ufffdcharacter \ufffd",
    "\u202eright to left\u202c \u2066isolate\u2069",
    "private\ue000use \uf8ff \U000f0000",
    "not\ufffea\uffffcharacter \U0001ffff",
    "unassigned \u0378 \U000e0fff tags\U000e0041",
    "object\ufffc \ufff9annotation\ufffb",
    "variation\ufe0f\ufe0e selectors\U000e0100",
]
ACCENTS = [
    "café cafe\u0301 CAFÉ CAFE\u0301",
    "naïve résumé Ångström A\u030angstro\u0308m",
    "z\u0351\u0343\u036b\u0343a\u0321\u034dl\u0315g\u0322o\u0335 text",
    "\u0301alone \u0308 at\u0301",
    "ệ e\u0323\u0302 e\u0302\u0323 ê\u0323",
    "ﬀ ﬃ ĳ ŀ ŉ ǆ ſ ª º ß ΐ ᾳ",
    "İ i\u0307 ı I \u0130\u0307",
    "क़ क\u093c ড় ਖ਼ שׁ ש\u05c1",
    "가 ᄀ\u1161 각 ᄀ\u1161\u11a8 ᄀ",
    "a\u20dd b\u20e3 c\u0488 d\u0903",
    "\u0e33 \u0eb3 \u0f77 \u0f73",
    "ͅ ᾼ ᾀ ῼ",
]
SPECIAL = [
    "[CLS] text [SEP] more [PAD] [MASK] [UNK]",
    "<s>text</s> <pad> <mask> <unk>",
    "<|endoftext|>after",
    "<sep><cls><eop> <eod>",
    "[unused1] [MASK][MASK] [mask]",
    "The capital of France is [MASK].",
]
LONG = [
    "a" * 100,
    "a" * 101,
    "ab" * 50,
    "ab" * 51,
    "é" * 100,
    "é" * 101,
    "e\u0301" * 100,
    "漢字" * 60,
    "ж" * 100 + " " + "ж" * 101,
    "😀" * 100 + "x" + "😀" * 20,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "antidisestablishmentarianism hippopotomonstrosesquippedaliophobia",
    "-" * 120,
    "a-" * 60,
    "ทดสอบ" * 30,
    "loooooooooooooool yesssssssss hahahahahahaha",
    "x" * 99 + "\u200b" + "y",
    "x" * 99 + "\u0301" * 9 + "y",
]
OLD_AND_NEW = [
    "newer: ؝ ৽ ⹃ ⹝ 𑄀 𞥞 \u07fd \u0898 \ua7cb \ua7da",
    "a؝b a৽b a⹃b x\u0898y p\u1abfq a\u1b7db",
    "kanji\U0002b825x\U0002b91f \U0002b920",
    "a\u166db a\U000111c9b a\u1734b",
    "\u2f00\u2f01 \u2e9f \u3038 \u3220 \u32ff \u337f",
    "𐐀𐐨 𞤀𞤢 𑢠𑣀 Ꭰꭰ Ⴀⴀ Აა",
]
HAND = [*SENTENCES, *NUMBERS, *ADDRESSES, *EMOJI, *BLANKS, *CONTROLS, *ACCENTS]
HAND += [*SPECIAL, *LONG, *OLD_AND_NEW]


def _cases() -> list[str]:
    cases = dict.fromkeys(HAND)
    variants = (
        lambda text: unicodedata.normalize("NFD", text),
        str.upper,
        lambda text: text[::-1],
        lambda text: "".join(text.split()),
    )
    for number, text in enumerate(SENTENCES + ACCENTS):
        cases[variants[number % len(variants)](text)] = None
    glue = ("", " ", "\u00a0", "\n", "\u200d", "\u3000", "-", "\u0301")
    step = 1
    while len(cases) < 500:
        # Ever more distant texts, so that each script is paired with each other.
        for number, text in enumerate(HAND):
            other = HAND[(number + 37 * step) % len(HAND)]
            joined = text[:40] + glue[(number + step) % len(glue)] + other[-40:]
            cases[joined] = None
            if len(cases) == 500:
                break
        step += 1
    return list(cases)


CASES = _cases()
# Most of Unicode is Chinese, Hangul or private-use: a sample of it is enough.
CHARACTERS = [*range(0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x20000)]
CHARACTERS += range(0x3400, 0x110000, 997)
CHARACTERS = [chr(c) for c in CHARACTERS if not 0xD800 <= c < 0xE000]

REFERENCES = pathlib.Path(__file__).parent / "references"


def read_ids(name: str) -> dict[str, list[list[int]]]:
    """Rows of ids by the name of the setting, from `generate_tokenizers.py`."""
    with np.load(REFERENCES / name) as arrays:
        return {
            key: [
                row.tolist()
                for row in np.split(
                    arrays[key].astype(int), np.cumsum(arrays[f"{key}_lengths"])[:-1]
                )
            ]
            for key in arrays.files
            if not key.endswith("_lengths")
        }


def xlnet_text(text):
    """The normalization of XLNet's authors, in their order."""
    text = " ".join(text.strip().split())
    text = text.replace("``", '"').replace("''", '"')
    text = unicodedata.normalize("NFKD", text)
    return "".join(c for c in text if not unicodedata.combining(c))


def xlnet_ids(library, text):
    """The ids of a normalized text; a comma after a digit is a separate piece."""
    pieces = []
    for piece in library.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            number = library.encode(piece[:-1].replace("▁", ""), out_type=str)
            if not piece.startswith("▁") and number[0].startswith("▁"):
                number = (
                    [number[0][1:], *number[1:]] if number[0] != "▁" else number[1:]
                )
            pieces += [*number, ","]
        else:
            pieces.append(piece)
    return [library.piece_to_id(piece) for piece in pieces]


def is_tie(library, text):
    """Whether the two best segmentations of a text have almost equal scores."""
    best = library.nbest_encode(text, nbest_size=2)
    scores = [sum(library.get_score(i) for i in ids) for ids in best]
    return len(scores) == 2 and abs(scores[0] - scores[1]) < 1e-4
