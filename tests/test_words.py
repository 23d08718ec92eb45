"""Words that users do not meet: CONTRIBUTING.md says what to write instead."""

import re

from paths import ROOT

PACKAGE = ROOT / "src" / "byzantium"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = re.compile(
    r"(?<![a-z])(rooms?|doors?|liars?|strangers?|withst(and|ood)s?|raises? a sentence"
    r"|le(ave|ft) it away|whoever|licences?|cent(re[sd]?|ring)"
    r"|(neighbour|colour|behaviour|optimis(?!t)|normalis|minimis)[a-z]*)(?![a-z])",
    re.IGNORECASE,
)


def test_the_package_is_written_in_the_words_of_the_field() -> None:
    found = []
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        place = path.relative_to(PACKAGE).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.endswith("# former name"):
                found += [f"{place}:{number}: {match[0]}" for match in WORDS.finditer(line)]
    assert not found


def test_the_pages_are_too() -> None:
    found = []
    for path in PAGES:
        place = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{place}:{number}: {match[0]}" for match in WORDS.finditer(line)]
    assert not found
