"""Variants of training pairs: the same sentences as people type them, joined, or with other names and numbers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

import pydantic

from regard.config import Config
from regard.data.formats.filters import stable_hash
from regard.data.formats.pairs import Pair

Share = pydantic.Field(default=0.0, ge=0.0, le=1.0)


class VariantsSection(Config):
    """[data.variants]: the share of the training pairs that get an extra copy of each kind."""

    lower: float = Share  # the source in lower case, half of them without their final punctuation
    upper: float = Share  # both sides in upper case
    unpunctuated: float = Share  # the source without its final punctuation
    apostrophes: float = Share  # the source with the other kind of apostrophes and quotes
    joined: float = Share  # two to four pairs in a row as one text
    copied: float = Share  # other names, numbers, addresses where both sides have the same


MOST_JOINED = 4
FINAL = re.compile(r"(?<=[^\s.!?…])[.!?…]+\s*$")
SHARED = re.compile(r"\b(?:[A-Z][a-z]+|\d[\d.,:]*\d|\d)\b")
CURLY = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})
SYLLABLES = tuple(  # beginnings, vowels, consonants within, endings, as several languages have them
    tuple(parts.split(" "))
    for parts in (
        "B Br C Ch D Dr F G Gr H J K Kl L M N P R S Sch St T Tr V W X Y Z Kh Ng Sh Zh Ñ Ll Th",
        "a e i o u a e i o ai au ei ou ia ö ü á é ão y",
        "l r n m nd rt ss tt v z k lm x sh b g d rk ll",
        " n s r a o i e ez son ski ini eau mann ova es ko ng",
    )
)
DOMAINS = ("example.com", "example.org", "mail.example.net", "shop.example.de", "example.com.br")


def with_variants(pairs: Iterable[Pair], config: VariantsSection, seed: int) -> Iterator[Pair]:
    """The pairs, each followed by its variants; which ones it gets, its texts and the seed decide."""
    if not any(config.model_dump().values()):
        yield from pairs
        return
    recent: deque[Pair] = deque(maxlen=MOST_JOINED)
    for pair in pairs:
        yield pair
        recent.append(pair)
        random = Random(stable_hash(f"{seed}\0{pair.source}\0{pair.target}"))
        for name, make in VARIANTS.items():
            if random.random() < getattr(config, name) and (made := make(pair, random)):
                yield _changed(pair, *made)
        if random.random() < config.joined and len(recent) > 1:
            yield _joined(list(recent)[-random.randint(2, MOST_JOINED) :])


def _changed(pair: Pair, source: str, target: str) -> Pair:
    return replace(pair, source=source, target=target, links=None, possible=None)


def _joined(pairs: list[Pair]) -> Pair:
    """Pairs of one corpus, and so of the same languages, as one text."""
    last = pairs[-1]
    alike = [pair for pair in pairs if pair.to == last.to]
    return _changed(
        last, *(" ".join(side) for side in zip(*((each.source, each.target) for each in alike), strict=True))
    )


def _lower(pair: Pair, random: Random) -> tuple[str, str] | None:
    source = pair.source.lower()
    source = FINAL.sub("", source) if random.random() < 0.5 else source
    return (source, pair.target) if source != pair.source else None


def _upper(pair: Pair, random: Random) -> tuple[str, str]:
    return pair.source.upper(), pair.target.upper()


def _unpunctuated(pair: Pair, random: Random) -> tuple[str, str] | None:
    source = FINAL.sub("", pair.source)
    return (source, pair.target) if source != pair.source else None


def _apostrophes(pair: Pair, random: Random) -> tuple[str, str] | None:
    source = pair.source.translate(CURLY)
    if source == pair.source:
        source = re.sub(r'"([^"]*)"', r"“\1”", source.replace("'", "’"))
    return (source, pair.target) if source != pair.source else None


def _copied(pair: Pair, random: Random) -> tuple[str, str] | None:
    """Another name or number where both sides have the same one; else an address after both texts."""
    shared = sorted(set(SHARED.findall(pair.source)) & set(SHARED.findall(pair.target)))
    shared = [text for text in shared if _once(text, pair.source) and _once(text, pair.target)]
    if shared and random.random() < 0.75:
        old = random.choice(shared)
        new = _number(old, random) if old[0].isdigit() else invented_name(random)
        return _replaced(old, new, pair.source), _replaced(old, new, pair.target)
    return _with_address(pair, random)


def _once(text: str, within: str) -> bool:
    return len(re.findall(rf"\b{re.escape(text)}\b", within)) == 1


def _replaced(old: str, new: str, text: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", lambda _: new, text)


def _number(old: str, random: Random) -> str:
    """A number that is written alike: every digit is drawn again, the first is not 0."""
    digits = (str(random.randint(1 if place == 0 else 0, 9)) if c.isdigit() else c for place, c in enumerate(old))
    return "".join(digits)


def invented_name(random: Random) -> str:
    """A name of one to three syllables as several languages write them."""
    beginnings, vowels, middles, endings = SYLLABLES
    parts = [random.choice(beginnings), random.choice(vowels)]
    for _ in range(random.choice((0, 1, 1, 2))):
        parts += [random.choice(middles), random.choice(vowels)]
    return "".join([*parts, random.choice(endings)])


def _with_address(pair: Pair, random: Random) -> tuple[str, str]:
    address = random.choice(ADDRESSES)(random)
    if random.random() < 0.5:
        return f"{address} {pair.source}", f"{address} {pair.target}"
    if random.random() < 0.5:
        return f"{pair.source} ({address})", f"{pair.target} ({address})"
    return f"{FINAL.sub('', pair.source)}: {address}", f"{FINAL.sub('', pair.target)}: {address}"


def _address(random: Random) -> str:
    return f"{invented_name(random).lower()}@{random.choice(DOMAINS)}"


def _link(random: Random) -> str:
    page = f"/{invented_name(random).lower()}" if random.random() < 0.5 else ""
    return f"{random.choice(('https://', 'http://', 'www.'))}{random.choice(DOMAINS)}{page}"


def _amount(random: Random) -> str:
    return f"{random.choice('€$£')}{random.randint(1, 9999)}"


def _code(random: Random) -> str:
    letters = "".join(random.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(random.randint(1, 3)))
    return f"{letters}{random.choice(('', '-'))}{random.randint(10, 99999)}"


ADDRESSES: tuple[Callable[[Random], str], ...] = (_address, _link, _amount, _code)
VARIANTS: dict[str, Callable[[Pair, Random], tuple[str, str] | None]] = {
    "lower": _lower,
    "upper": _upper,
    "unpunctuated": _unpunctuated,
    "apostrophes": _apostrophes,
    "copied": _copied,
}
