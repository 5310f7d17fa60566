"""Subword, word and character tokenizers for sentence pairs, trained on the corpus.

Every kind pre-tokenizes alike: NFC, collapsed whitespace, `▁` for the space before a word, punctuation and digits
separate. So decoding restores the normalised text of every sentence without unknown pieces.

With `mark_case` words are segmented in lower case, and a capital first letter becomes a token before the word, so that
`We` and `we` share their pieces. The Spanish `¿` and `¡` are separate words for the same reason.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import tokenizers
from pydantic import Field, model_validator
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.config import Config
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.base import OPENINGS, SPACE, Tokenizer, read_languages, well_formed, written_languages
from regard.data.tokenizers.marian import marian_files, marian_sides, read_marian
from regard.data.tokenizers.prompted import PROMPTS, prompted_sides
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError, ConfigError, UsageError

PAD, START, END, UNKNOWN, CAPITAL = "<pad>", "<s>", "</s>", "<unk>", "<capital>"
SETTINGS = "tokenizer_config.json"
CACHED_WORDS, LONGEST_CACHED_WORD = 1 << 17, 64  # the cache of segmented words: its size, and the longest cached word
MARKS = r"(?<!\p{L})-|-(?!\p{L})|[[\p{P}$+<=>^`|~]&&[^-]]"  # a hyphen inside a word is part of it
LONGEST_WORDPIECE_WORD = 100  # characters; longer words are split first, because matching is cubic in the length


class TokenizerConfig(Config):
    """How to segment text: `size` counts all pieces, `joint` shares one vocabulary between source and target."""

    kind: Literal["bpe", "unigram", "wordpiece", "word", "character"] = "bpe"
    size: int = Field(8000, ge=8)
    joint: bool = True
    lowercase: bool = False
    mark_case: bool = False  # capital letters as tokens; capitals inside a word are lost
    min_frequency: int = Field(2, ge=1)  # how often a merge, word or character must occur; unigram has no use for it
    dropout: float = Field(0.0, ge=0.0, lt=1.0)  # BPE dropout while training (Provilkov 2020)
    file: str = ""  # a SentencePiece model that is used instead of learning one; then kind, size, min_frequency are not
    target_file: str = ""  # the same for the target side, if it has another one; needs joint = false

    @model_validator(mode="after")
    def _only_bpe_has_dropout(self) -> Self:
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"dropout needs kind = 'bpe', this is {self.kind!r}; set dropout = 0 or kind = 'bpe'")
        return self

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        changes = [name for name in ("lowercase", "mark_case", "dropout") if getattr(self, name)]
        if self.file and changes:
            raise ValueError(
                f"{changes[0]} changes how a text is cut, which file = {self.file!r} decides; leave it out"
            )
        if self.target_file and not self.file:
            raise ValueError("target_file is the second of two files; give the one of the source as file")
        if self.file and self.joint == bool(self.target_file):
            wanted = "joint = false has two vocabularies: give target_file too, or set joint = true"
            shared = "target_file is a second vocabulary: set joint = false (and in [model] no tie = 'all')"
            raise ValueError(shared if self.joint else wanted)
        return self


class SubwordTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library; text never produces its special tokens."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        library.encode_special_tokens = True  # '</s>' in a text is four characters, not the end of the sentence
        ids = library.get_vocab()
        vocabulary = sorted(ids, key=ids.__getitem__)
        super().__init__(
            vocabulary, pad=ids[PAD], start=ids[START], end=ids[END], unknown=ids[UNKNOWN], capital=ids.get(CAPITAL)
        )
        self.backend = library
        self._cache: dict[str, list[int]] = {}

    def __reduce__(self) -> tuple[type[SubwordTokenizer], tuple[tokenizers.Tokenizer]]:
        return SubwordTokenizer, (self.backend,)  # the library's own pickle forgets `encode_special_tokens`

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode word by word with a cache: no piece crosses a space, and a corpus has few distinct words."""
        return [[piece for cut in cuts for piece in cut] for cuts in self._cuts(texts)]

    def words_in(self, text: str) -> list[int]:
        (cuts,) = self._cuts([text])
        return [word for word, cut in enumerate(cuts) for _ in cut]

    def copied(self, word: str) -> str:
        """With a word vocabulary, affixes with tokens of their own (a comma, `'s`) are removed: they are translated."""
        if not isinstance(self.backend.model, models.WordLevel):
            return word
        rest, ids = word, [piece for piece in self.encode([word])[0] if piece != self.capital]
        while ids and ids[-1] != self.unknown:
            rest = rest.removesuffix(self.vocabulary[ids.pop()])
        while ids and ids[0] != self.unknown:
            rest = rest.removeprefix(self.vocabulary[ids.pop(0)].removeprefix(SPACE))
        return rest if ids else re.sub(r"^\W+|\W+$", "", word) or word

    def _cuts(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """The ids of each word of each text."""
        texts_of_words = [well_formed(text).replace(SPACE, " ").split() for text in texts]
        cuts = {word: self._cache.get(word) for words in texts_of_words for word in words}
        new = [word for word, cut in cuts.items() if cut is None]
        found = dict(zip(new, self._cut(new), strict=True))
        self._add_to_cache({word: ids for word, ids in found.items() if len(word) <= LONGEST_CACHED_WORD})
        known: dict[str, list[int]] = cuts | found  # type: ignore[assignment]  # what was None has been found
        return [[known[word] for word in words] for words in texts_of_words]

    def _cut(self, words: Sequence[str]) -> Iterator[list[int]]:
        plain = words if self.capital is None else [uncapitalised(word) for word in words]
        cuts = self.backend.encode_batch_fast(plain, add_special_tokens=False)
        for word, cut in zip(words, cuts, strict=True):
            marked = self.capital is not None and capitalised(word)
            yield [self.capital, *cut.ids] if marked else cut.ids  # type: ignore[list-item]  # marked: not None

    def _add_to_cache(self, words: Mapping[str, list[int]]) -> None:
        if len(self._cache) + len(words) > CACHED_WORDS:
            self._cache = {}
        self._cache.update(words)


@dataclass(frozen=True)
class PairTokenizer:
    """The tokenizers of both sides; `source is target` if they share a vocabulary. Equal if their files are equal."""

    source: Tokenizer = field(compare=False)
    target: Tokenizer = field(compare=False)
    source_languages: tuple[str, ...]  # one empty string if the files do not tell
    target_languages: tuple[str, ...]
    files: Mapping[str, bytes] = field(repr=False)  # what `save` writes: JSON of `tokenizers`, or a Marian folder's own

    @property
    def source_language(self) -> str:
        """The language of the source, the first of several; empty if the files do not tell."""
        return self.source_languages[0]

    def tag(self, to: str = "") -> list[int]:
        """The ids that select the target language; empty for the language of a model that had only one."""
        if to and to not in self.target_languages and any(self.target_languages):
            raise UsageError(f"cannot translate into {to!r}; this model knows {', '.join(self.target_languages)}.")
        if not to and len(self.target_languages) > 1:
            raise UsageError(f"this model has several targets; choose one of {', '.join(self.target_languages)}.")
        return self.source.prompt(to or self.target_languages[0])

    def source_ids(self, texts: Sequence[str], to: str = "") -> list[list[int]]:
        """The language tag (if there are several targets), the text's ids, and the end token."""
        tag = self.tag(to)
        return [[*tag, *ids, self.source.end] for ids in self.source.encode(texts)]

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The text's ids and the end token."""
        return [[*ids, self.target.end] for ids in self.target.encode(texts)]

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into an existing or new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Whether a folder has a tokenizer for sentence pairs, not for single texts."""
        settings = folder / SETTINGS
        if any((folder / name).is_file() for name in ("source.spm", PROMPTS)):
            return True
        return settings.is_file() and b'"targets"' in settings.read_bytes()

    @classmethod
    def load(cls, folder: Path) -> PairTokenizer:
        """Read what `save` wrote, or the tokenizer of a Marian folder of Hugging Face, or that of a prompted model."""
        if (folder / "source.spm").is_file():
            return from_files(read_marian(folder), str(folder))
        if (folder / PROMPTS).is_file():
            return from_files({**TextTokenizer.load(folder).files, PROMPTS: (folder / PROMPTS).read_bytes()})
        if not (folder / SETTINGS).is_file():
            raise CheckpointError(f"{folder} holds no tokenizer: neither {SETTINGS} nor source.spm is there.")
        try:
            settings = json.loads((folder / SETTINGS).read_bytes())
            if "joint" not in settings:
                raise CheckpointError(
                    f"{folder} is no translator: its tokenizer is for texts, not for a pair of languages"
                )
            names = (SETTINGS, *file_names(settings["joint"]))
            return from_files({name: (folder / name).read_bytes() for name in names})
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            raise CheckpointError(f"{folder} has no {Path(error.filename).name}, a part of its tokenizer") from None
        except KeyError as error:
            raise CheckpointError(f"the tokenizer in {folder} is no translator's: it lacks {error}") from None
        except Exception as error:  # `tokenizers` raises bare Exception for a damaged file
            raise CheckpointError(f"cannot read the tokenizer in {folder}: {error}") from error


def train_pair_tokenizer(
    pairs: Iterable[Pair], config: TokenizerConfig, source: str | Sequence[str], targets: Sequence[str]
) -> PairTokenizer:
    """Train a tokenizer: pad is 0, start 1, end 2, unknown 3, then a tag per target language if there are several.

    `source` is one language or several, which need no tags.
    """
    if not targets:
        raise ConfigError("a tokenizer needs at least one target language; none given.")
    tags = [f">>{code}<<" for code in targets] if len(targets) > 1 else []
    if config.joint:
        sides = [_train((text for pair in pairs for text in (pair.source, pair.target)), config, tags)]
    else:
        pairs = list(pairs) if isinstance(pairs, Iterator) else pairs  # read twice
        sides = [
            _train((pair.source for pair in pairs), config, tags),
            _train((pair.target for pair in pairs), config, []),
        ]
    settings = {"source": written_languages(source), "targets": list(targets), **config.model_dump()}
    contents = [json.dumps(settings, indent=2), *(side.to_str(pretty=True) for side in sides)]
    names = (SETTINGS, *file_names(config.joint))
    return from_files({name: content.encode() for name, content in zip(names, contents, strict=True)})


def read_pair_tokenizer(config: TokenizerConfig, source: str | Sequence[str], targets: Sequence[str]) -> PairTokenizer:
    """The tokenizer of the SentencePiece models that a config names."""
    models = []
    for name in filter(None, (config.file, config.target_file)):
        try:
            models.append(Path(name).read_bytes())
        except OSError as error:
            raise ConfigError(f"tokenizer.file: {name} cannot be read ({error.strerror or error})") from None
    where = " and ".join(filter(None, (config.file, config.target_file)))
    return from_files(marian_files(models[0], models[-1], source, targets, where), where)


def capitalised(word: str) -> bool:
    """Whether the first letter of a word is a capital."""
    first = next(filter(str.isalpha, word), "")
    return first != first.lower()


def uncapitalised(word: str) -> str:
    """A word in lower case, with a space after each opening mark: ¿Dónde -> ¿ dónde."""
    rest = word.lstrip(OPENINGS)
    return " ".join([*word[: len(word) - len(rest)], rest.lower()]).strip()


def file_names(joint: bool) -> tuple[str, ...]:
    """The files of a trained tokenizer: one for both sides, or one for each."""
    return ("tokenizer.json",) if joint else ("source.json", "target.json")


def from_files(files: Mapping[str, bytes], where: str = "the tokenizer") -> PairTokenizer:
    """The tokenizer of these files, which `PairTokenizer.save` writes or a Marian folder has."""
    if "source.spm" in files:
        return PairTokenizer(*marian_sides(files, where), files)
    if PROMPTS in files:
        return PairTokenizer(*prompted_sides(files), files)
    settings = json.loads(files[SETTINGS])
    sides = [
        SubwordTokenizer(tokenizers.Tokenizer.from_str(files[name].decode())) for name in file_names(settings["joint"])
    ]
    return PairTokenizer(sides[0], sides[-1], read_languages(settings["source"]), tuple(settings["targets"]), files)


def _train(texts: Iterable[str], config: TokenizerConfig, tags: Sequence[str]) -> tokenizers.Tokenizer:
    specials = [PAD, START, END, UNKNOWN, *tags, *([CAPITAL] if config.mark_case else [])]
    library = tokenizers.Tokenizer(_empty_model(config))
    library.normalizer = _normalizer(config.lowercase)
    library.pre_tokenizer = _pre_tokenizer(config)
    library.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    texts = map(well_formed, texts)
    if config.mark_case:
        texts = (" ".join(map(uncapitalised, text.split())) for text in texts)
    if config.kind == "unigram":
        library.model = _train_unigram(texts, library, specials, config.size)
        library.add_special_tokens(specials)
    else:
        library.train_from_iterator(texts, _trainer(config, specials))
    return library


def _empty_model(config: TokenizerConfig) -> models.Model:
    match config.kind:
        case "bpe":
            return models.BPE(unk_token=UNKNOWN)
        case "unigram":
            return models.Unigram()
        case "wordpiece":
            # No "##": the absence of "▁" already says that a piece continues a word.
            return models.WordPiece(
                unk_token=UNKNOWN, continuing_subword_prefix="", max_input_chars_per_word=LONGEST_WORDPIECE_WORD
            )
        case "word" | "character":
            return models.WordLevel(unk_token=UNKNOWN)


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    spaces = normalizers.Replace(Regex(rf"[\s\x1c-\x1f{SPACE}]+"), " ")
    case: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*case, normalizers.NFC(), spaces, normalizers.Strip()])


def _pre_tokenizer(config: TokenizerConfig) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    if config.kind == "character":
        return pre_tokenizers.Sequence([words, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")])
    punctuation: pre_tokenizers.PreTokenizer = pre_tokenizers.Punctuation("isolated")
    if config.mark_case:
        punctuation = pre_tokenizers.Split(Regex(rf"{SPACE}[{OPENINGS}](?={SPACE}|$)|{MARKS}"), "isolated")
    steps = [words, punctuation, pre_tokenizers.Digits(individual_digits=True)]
    if config.kind == "wordpiece":
        steps.append(pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{LONGEST_WORDPIECE_WORD}}}"), "isolated"))
    return pre_tokenizers.Sequence(steps)


def _trainer(config: TokenizerConfig, specials: list[str]) -> trainers.Trainer:
    size, least = config.size, config.min_frequency
    if config.kind in ("word", "character"):
        return trainers.WordLevelTrainer(
            vocab_size=size, min_frequency=least, special_tokens=specials, show_progress=False
        )
    make = trainers.BpeTrainer if config.kind == "bpe" else trainers.WordPieceTrainer
    return make(
        vocab_size=size,
        min_frequency=least,
        special_tokens=specials,
        show_progress=False,
        limit_alphabet=size // 2,  # rare characters must not displace useful pieces
        continuing_subword_prefix="",
    )


def _train_unigram(
    texts: Iterable[str], library: tokenizers.Tokenizer, specials: Sequence[str], size: int
) -> models.Unigram:
    """Kudo's unigram model, learnt by SentencePiece: the trainer of `tokenizers` differs from one run to the next."""
    import sentencepiece

    model = io.BytesIO()
    boundary = "\t"  # never in normalised text; pieces do not cross it
    cut: Callable[[str], list[tuple[str, object]]] = library.pre_tokenizer.pre_tokenize_str
    normalise: Callable[[str], str] = library.normalizer.normalize_str
    sentences = (boundary.join(word for word, _ in cut(normalise(text))).replace(SPACE, " ") for text in texts)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences,
        model_writer=model,
        model_type="unigram",
        vocab_size=size - len(specials) + 1,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        pretokenization_delimiter=boundary,
        max_sentence_length=1 << 16,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,  # sums in one order, so the same corpus gives the same pieces
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    learnt = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(1, trained.get_piece_size())]
    return models.Unigram([(special, 0.0) for special in specials] + learnt, unk_id=specials.index(UNKNOWN))
