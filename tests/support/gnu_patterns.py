"""Random patterns for GNU grep in its four dialects, each with texts that it is likely to match."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

LETTERS = "abckKsSiI"
# Letters whose case each tool folds in its own way; with names where they look like others.
LONG_S, KELVIN, DOTLESS = "\u017f", "\u212a", "\u0131"
ODD = f"éÉßẞ{LONG_S}{KELVIN}{DOTLESS}İåÅθϴ日"
PLAIN = " -_/:\"'#%&,;=@~!`<>01]}"
META = "\\.+*?()|[]{}^$"

# A character, and texts that it stands for.
ANY = (".", LETTERS + ODD)
CLASSES = [
    ("[Kk]", "Kk"), ("[ab]", "ab"), ("[^b]", "acB"), ("[a-c]", "abc"), ("[A-k]", "AakK"), ("[]a]", "]a"),
    ("[^]a]", "bk"), ("[-a]", "-a"), ("[a-]", "-a"), ("[[:alpha:]]", "abé"), ("[^[:space:]]", "a1"),
    ("[é]", "é"), ("[éa]", "éa"), ("[[a]", "[a"), ("[ab ]", "ab "), ("[.]", "."), ("[*]", "*"),
    (f"[{DOTLESS}]", DOTLESS), (f"[{KELVIN}k]", f"{KELVIN}k"), ("[0-9]", "019"), ("[Ss_]", "Ss_"),
]  # fmt: skip
GNU_CLASSES = [
    ("[[=a=]]", "aá"), ("[[.-.]]", "-"), ("[a[=b=]]", "ab"), ("[\\n]", "\\n"), ("[a\\]", "a\\"),
    ("[[.a.]b]", "ab"), ("[[:alpha:]k]", "bk"), ("[[:alpha:]-]", "-"), ("[x[:digit:]]", "x1"),
]  # fmt: skip
WORDS = [("\\w", "ak1é"), ("\\W", " -"), ("\\s", " \t"), ("\\S", "a1é")]
ZERO = ["^", "$", "\\b", "\\B", "\\<", "\\>", "\\`", "\\'"]
STRAY = [f"\\{char}" for char in 'dnqé0_/- "!]}&']
PERL = [
    ("(?=a)", "a"), ("(?=ka|.b)", "ka"), ("(?!b)", ""), ("(?<=a)", ""), ("(?<=is)", "is"), ("(?<!b)", ""),
    ("(?>ab|a)", "ab"), ("a++", "aa"), ("\\h", " "), ("\\R", ""), ("\\K", ""), ("\\Qa.b\\E", "a.b"),
    ("\\N", "a"), ("(?#no)", ""), ("\\1", ""), ("(?i)", ""), ("(?i:ab)", "AB"), ("(?1)", ""),
    ("(?|(a)|(b))", "a"), ("\\x{61}", "a"), ("\\x61", "a"), ("\\xe9", "é"), ("\\o{141}", "a"), ("\\141", "a"),
    ("\\cA", ""), ("a{,2}", "a{,2}"), ("a{,2}", "aa"), ("a{ 1 }", "a{ 1 }"), ("a{1", "a{1"), ("\\d+", "12"),
    ("\\Z", ""), ("\\A", ""), ("\\z", ""), ("\\G", ""), ("\\X", "é"), ("\\v", "\v"), ("(?(?=a)ab|cd)", "ab"),
    ("(*UCP)", ""), ("(?<n>a)\\k<n>", "aa"), ("(?P<n>a)(?P=n)", "aa"), ("(?s).", "a"), ("\\p{L}", "é"),
    ("[[:alpha:]]", "k"), ("[\\w-]", "a-"), ("[\\x61]", "a"), ("\\t", "\t"), ("(a)?(?(1)b|c)", "c"),
    ("[a&&b]", "&"), ("(?x)a b", "ab"), ("a*?b", "b"), ("(?:a|(?=k))", "k"), ("(?=(a|b)c)?", ""),
]  # fmt: skip
COUNTS = [
    ("*", 0, 2), ("+", 1, 2), ("?", 0, 1), ("{2}", 2, 2), ("{1,2}", 1, 2), ("{0,1}", 0, 1), ("{1,}", 1, 3),
    ("{2,}", 2, 3), ("{0}", 0, 0), ("{,2}", 0, 2), ("{2,3}", 2, 3), ("**", 0, 2), ("+?", 1, 1), ("{2,1}", 0, 0),
]  # fmt: skip
SPELLED: Final = {"(", ")", "|", "+", "?", "{", "}"}  # a basic pattern has these with a backslash


@dataclass(frozen=True, slots=True)
class Case:
    """One command line, and texts that its patterns probably match."""

    words: tuple[bytes, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes patterns of one dialect: G, E, P or F."""

    rng: random.Random
    dialect: str

    def pattern(self, depth: int = 3) -> tuple[str, str]:
        """Return a pattern and a text that it matches, anchors aside."""
        if self.dialect == "F":
            alphabet = LETTERS * 3 + ODD + META + PLAIN
            text = "".join(self.rng.choice(alphabet) for _ in range(self.rng.randint(0, 6)))
            return text, text
        made = [self._item(depth) for _ in range(self.rng.randint(1, 4))]
        return "".join(p for p, _ in made), "".join(t for _, t in made)

    def _spelled(self, sign: str) -> str:
        """Return an operator as the dialect writes it."""
        if self.dialect == "G":
            return "".join(f"\\{char}" if char in SPELLED else char for char in sign)
        return sign

    def _literal(self, char: str) -> str:
        """Return a character that stands for itself, with a backslash where it needs one."""
        if char in ".*[]^$\\" or (self.dialect != "G" and char in META):
            return f"\\{char}"
        return char

    def _item(self, depth: int) -> tuple[str, str]:
        choose = self.rng.choice
        kind = self.rng.random()
        if kind < 0.45 or (depth == 0 and kind > 0.7):
            text = "".join(choose(LETTERS) for _ in range(self.rng.randint(1, 4)))
            return text, text
        if kind < 0.55:
            char = choose(ODD + PLAIN + META)
            return self._literal(char), char
        if kind < 0.63:
            written, texts = self._character()
            return written, choose(texts)
        if kind < 0.67:
            return choose(ZERO), ""
        if kind < 0.7:
            return self._oddity()
        if kind < 0.85:
            return self._group(depth - 1)
        return self._repeated(depth - 1)

    def _character(self) -> tuple[str, str]:
        """Return a class and the characters of it."""
        return self.rng.choice([ANY, *CLASSES, *WORDS, *(GNU_CLASSES * (self.dialect != "P"))])

    def _oddity(self) -> tuple[str, str]:
        """Return what is read in ways of its own."""
        if self.dialect == "P":
            return self.rng.choice(PERL)
        made = self.rng.choice([*STRAY, "\\1", "\\2", "{", "*", "[:alpha:]"])
        return made, self.rng.choice([made, made[-1], ""])

    def _group(self, depth: int) -> tuple[str, str]:
        """Return alternatives, and a text of one of them."""
        branches = [self.pattern(depth) for _ in range(self.rng.choice([1, 2, 2, 3]))]
        if self.rng.random() < 0.1:
            branches.append(("", ""))
        inside = self._spelled("|").join(p for p, _ in branches)
        text = self.rng.choice(branches)[1]
        return self._spelled("(") + inside + self._spelled(")"), text

    def _repeated(self, depth: int) -> tuple[str, str]:
        """Return an item with a count, and as many copies of its text as that allows."""
        kind = self.rng.random()
        if kind < 0.4:
            inner, text = self._group(depth)
        elif kind < 0.6:
            inner, texts = self._character()
            text = self.rng.choice(texts)
        else:
            text = self.rng.choice(LETTERS + ODD + "^.$")
            inner = self._literal(text) if self.rng.random() < 0.9 else text
        count, least, most = self.rng.choice(COUNTS)
        return inner + self._spelled(count), text * self.rng.randint(least, most)

    def damaged(self) -> tuple[str, str]:
        """Return a pattern, now and then with a character put in, left out or in the wrong place."""
        made, text = self.pattern()
        rng = self.rng
        if rng.random() < 0.1:
            at = rng.randint(0, len(made))
            made = (
                made[:at] + rng.choice(META + PLAIN + "xpbQE^,-") + made[at + rng.randint(0, 1) :]
            )
        if rng.random() < 0.04:
            made = "".join(rng.choice(META + META + "ab1,^-:=") for _ in range(rng.randint(1, 8)))
        return made, text


def case(rng: random.Random) -> Case:
    """Return a random command line that lists the matching ones of the files behind it."""
    dialect = rng.choice("GGEEPPF")
    make = Maker(rng, dialect)
    flags = rng.choice([["-" + dialect]] * 9 + [["--fixed-regexp"], ["-EF"]])
    if dialect == "G" and rng.random() < 0.5:
        flags = []
    flags += rng.choice(
        [[]] * 6 + [["-i"]] * 4 + [["-y"], ["-i", "--no-ignore-case"], ["--ignore"]]
    )
    flags += rng.choice([[]] * 8 + [["-w"], ["-x"], ["-z"]] * 2 + [["-a"], ["-zx"], ["-U", "-wi"]])
    patterns, texts = [], []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        pattern, text = make.damaged()
        patterns.append(pattern)
        texts += [cased(rng, text) for _ in range(2)]
    if len(patterns) == 1 and rng.random() < 0.5:
        words = [*flags, "--", patterns[0]]
    elif rng.random() < 0.2:
        words = [*flags, "-e", "\n".join(patterns), "--"]
    else:
        words = [*flags, *(word for pattern in patterns for word in ("-e", pattern)), "--"]
    return Case(tuple(word.encode() for word in ["-lZs", *words]), tuple(texts))


def cased(rng: random.Random, text: str) -> str:
    """Return a text with the case of some letters changed, as some tool folds them."""
    others = {"k": KELVIN, "K": KELVIN, KELVIN: "k", "s": LONG_S, "S": LONG_S, LONG_S: "S"}
    others |= {"i": DOTLESS, "I": "İ", "é": "É", "θ": "ϴ"}
    if rng.random() < 0.5:
        return text
    return "".join(
        c if rng.random() < 0.6 else rng.choice([c.swapcase()[:1], others.get(c, c)]) for c in text
    )
