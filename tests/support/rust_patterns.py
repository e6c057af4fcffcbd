"""Random patterns for ripgrep, each with a text that it is likely to match."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LETTERS = "abckKsSiI"
# Letters whose case each tool folds in its own way; with names where they look like others.
LONG_S, KELVIN, DOTLESS, SIGMA = "\u017f", "\u212a", "\u0131", "\u03c3"
ODD = f"éÉßẞ{LONG_S}{KELVIN}{DOTLESS}İåÅ{SIGMA}ς日"
PLAIN = " -_/:\"'#%&,;=@~!`<>0127}]"
META = "\\.+*?()|[]{}^$"
CLASSES = [
    ("\\w", "ak1"), ("\\d", "12"), ("\\s", " \t"), ("\\W", " -"), ("\\D", "a-"), ("\\S", "a1"),
    ("\\pL", "aé"), ("\\p{Greek}", SIGMA), ("\\PL", "1-"), ("\\P{Greek}", "ab"), ("\\p{L}", "bS"),
    ("[[:alpha:]]", "ab"), ("[[:^digit:]]", "ab"), ("[a-c]", "abc"), ("[^b]", "acB"), ("[a-z&&[^b]]", "ac"),
    ("[a-z--b]", "ac"), ("[ab~~b]", "a"), ("[]a]", "]a"), ("[^]a]", "bk"), ("[-a]", "-a"), ("[a-]", "-a"),
    ("[\\]a]", "]a"), ("[[ab]k]", "abk"), ("[Kk]", "Kk"), ("[Ss]", "Ss"), ("[.]", "."), ("[\\[]", "["),
    ("[ab ]", "ab "), ("[\\w-]", "a-"), (f"[{DOTLESS}]", DOTLESS), ("[é]", "é"), ("[--a]", "-a"), ("[&]", "&"),
]  # fmt: skip
EXACT = [
    ("\\x61", "a"), ("\\x{6b}", "k"), ("\\u0073", "s"), ("\\u{e9}", "é"), ("\\U0000212A", "K"),
    ("\\t", "\t"), ("\\.", "."), ("\\-", "-"), ("\\\\", "\\"), ("\\/", "/"), ("\\\"", '"'), ("\\#", "#"),
    ("\\&", "&"), ("\\~", "~"), ("\\}", "}"), ("\\ ", " "), ("\\_", "_"),
]  # fmt: skip
ZERO = [
    "^",
    "$",
    "\\b",
    "\\B",
    "\\b{start}",
    "\\b{end-half}",
    "\\<",
    "\\>",
    "\\A",
    "\\z",
    "()",
    "(?:)",
    "",
]
FLAGS = ["i", "s", "U", "-i", "m", "si", "i-s", "u", "x", "-u", "-m", "R"]
PERL = [
    ("(?=a)", ""), ("(?!b)", ""), ("(?<=a)", ""), ("(?<!b)", ""), ("(?>ab|a)", "ab"), ("a++", "aa"),
    ("\\h", " "), ("\\R", ""), ("\\K", ""), ("\\Qa.b\\E", "a.b"), ("\\N", "a"), ("(?#no)", ""), ("\\1", ""),
    ("(?i)", ""), ("(?i:ab)", "AB"), ("(?1)", ""), ("(?|(a)|(b))", "a"), ("\\x{61}", "a"), ("\\o{141}", "a"),
    ("\\141", "a"), ("\\cA", ""), ("a{,2}", "a{,2}"), ("a{ 1 }", "a{ 1 }"), ("a{1", "a{1"), ("\\d+", "12"),
    ("[a-c]", "b"), ("[[:alpha:]]", "k"), ("[^b]", "a"), ("\\Z", ""), ("\\G", ""), ("\\X", "é"), ("\\v", "\v"),
    ("(?(?=a)ab|cd)", "ab"), ("(*UCP)", ""), ("(?<n>a)\\k<n>", "aa"), ("(?P<n>a)(?P=n)", "aa"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One command line, and texts that its patterns probably match."""

    words: tuple[bytes, ...]
    texts: tuple[str, ...]
    files: dict[int, bytes] = field(default_factory=dict)


def case(rng: random.Random) -> Case:
    """Return a random command line that lists the matching files of the current directory."""
    perl = rng.random() < 0.2
    flags = ["-j1", "-l0", "--no-messages"]  # one thread: less to start
    fixed = not perl and rng.random() < 0.15
    flags += ["-P"] * perl + ["-F"] * fixed
    flags += rng.choice([[], [], [], ["-i"], ["-S"], ["-S", "-s"], ["-i", "-s"], ["-s"]])
    flags += rng.choice(
        [[]] * 9 + [["-w"], ["-x"], ["--crlf"]] * 3 + [["-a"], ["--no-unicode"], ["-U"]]
    )
    patterns, texts = [], []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        pattern, text = fixed_string(rng) if fixed else _damaged(rng, perl)
        patterns.append(pattern)
        texts.append(_cased(rng, text))
        texts.append(_cased(rng, text))
    if len(patterns) == 1 and not patterns[0].startswith("-") and rng.random() < 0.5:
        words = [*flags, patterns[0]]
    else:
        words = [*flags, *(word for pattern in patterns for word in ("-e", pattern))]
    tail = rng.choice([["."], ["--", "."]])
    return Case(
        tuple(word.encode() for word in [*words, *tail]),
        tuple(text.replace("\0", "") for text in texts),
    )


def fixed_string(rng: random.Random) -> tuple[str, str]:
    """Return a string for -F."""
    text = "".join(rng.choice(LETTERS + ODD + META + PLAIN) for _ in range(rng.randint(0, 6)))
    return text, text


def pattern(rng: random.Random, perl: bool = False, depth: int = 3) -> tuple[str, str]:
    """Return a pattern and a text that it matches, flags and anchors aside."""
    made = [_item(rng, perl, depth) for _ in range(rng.randint(1, 4))]
    return "".join(p for p, _ in made), "".join(t for _, t in made)


def _item(rng: random.Random, perl: bool, depth: int) -> tuple[str, str]:
    kind = rng.random()
    if kind < 0.5 or (depth == 0 and kind > 0.7):
        text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 5)))
        return text, text
    if kind < 0.55:
        char = rng.choice(ODD + PLAIN)
        return char, char
    if kind < 0.6:
        return rng.choice(PERL if perl else EXACT)
    if kind < 0.65:
        text, chars = rng.choice(CLASSES)
        return text, rng.choice(chars)
    if kind < 0.68:
        return rng.choice(ZERO), ""
    if kind < 0.7:
        return ".", rng.choice(LETTERS + ODD)
    if kind < 0.72:
        return f"(?{rng.choice(FLAGS)})", ""
    if kind < 0.85:
        return _group(rng, perl, depth - 1)
    return _repeated(rng, perl, depth - 1)


def _group(rng: random.Random, perl: bool, depth: int) -> tuple[str, str]:
    branches = [pattern(rng, perl, depth) for _ in range(rng.choice([1, 2, 2, 3]))]
    if rng.random() < 0.05:
        branches.append(("", ""))
    opening = rng.choice(["(", "(?:", "(?:", "(?P<n>", "(?<m>", f"(?{rng.choice(FLAGS)}:"])
    return opening + "|".join(p for p, _ in branches) + ")", rng.choice(branches)[1]


def _repeated(rng: random.Random, perl: bool, depth: int) -> tuple[str, str]:
    inner, text = (
        _group(rng, perl, depth)
        if rng.random() < 0.4
        else (
            rng.choice(
                [".", "a", "K", "é", LONG_S, KELVIN, "\\w", "[Kk]", "[^b]", "\\b", "\\.", "\\x61"]
            ),
        )
        * 2
    )
    times, least, most = rng.choice(
        [("*", 0, 2), ("+", 1, 2), ("?", 0, 1), ("{2}", 2, 2), ("{1,2}", 1, 2), ("{0,1}", 0, 1),
         ("{1,}", 1, 3), ("{0}", 0, 0), ("*?", 0, 2), ("+?", 1, 2), ("{2}?", 2, 2), ("**", 0, 2),
         ("?+", 0, 2), ("++", 1, 2)]
    )  # fmt: skip
    return inner + times, text.removeprefix("\\") * rng.randint(least, most)


def _damaged(rng: random.Random, perl: bool) -> tuple[str, str]:
    """Return a pattern, now and then with a character put in, left out or in the wrong place."""
    made, text = pattern(rng, perl)
    if rng.random() < 0.1:
        at = rng.randint(0, len(made))
        made = made[:at] + rng.choice(META + PLAIN + "xpbQE^,-") + made[at + rng.randint(0, 1) :]
    if rng.random() < 0.03:
        made = "".join(rng.choice(META + "ab1,^-:&") for _ in range(rng.randint(1, 8)))
    return made, text


def _cased(rng: random.Random, text: str) -> str:
    """Return a text with the case of some letters changed, as some tool folds them."""
    others = {"k": KELVIN, "K": KELVIN, KELVIN: "k", "s": LONG_S, "S": LONG_S, LONG_S: "S"}
    others |= {"i": DOTLESS, "I": "İ"}
    if rng.random() < 0.5:
        return text
    return "".join(
        c if rng.random() < 0.6 else rng.choice([c.swapcase()[:1], others.get(c, c)]) for c in text
    )
