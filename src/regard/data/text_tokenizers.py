"""Tokenizers of pre-trained text models, as Hugging Face folders hold them: whole texts in, numbered pieces out.

Read are `tokenizer.json`; the `vocab.txt` of BERT; `vocab.json` with `merges.txt` (RoBERTa, GPT-2); the SentencePiece
file of ALBERT, T5 and Llama. All become one tokenizer of the `tokenizers` library, so they cut, mark and pair texts
alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.processors import TemplateProcessing

from regard.data.pieces import SPACE, well_formed, words_of_characters
from regard.errors import CheckpointError

WHOLE, WORDS, PAIRS, MERGES = "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"
SENTENCEPIECE = ("spiece.model", "sentencepiece.model", "tokenizer.model")
SETTINGS, SPECIALS, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
FILES = (WHOLE, WORDS, PAIRS, MERGES, *SENTENCEPIECE, SETTINGS, SPECIALS, ADDED)
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # what folders call it, and the usual tokens
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
    "unknown": (("unk_token",), ("[UNK]", "<unk>")),
    "start": (("cls_token", "bos_token"), ("[CLS]", "<s>", "<|endoftext|>")),
    "end": (("eos_token", "sep_token"), ("[SEP]", "</s>", "<|endoftext|>")),
    "separator": (("sep_token", "eos_token"), ("[SEP]", "</s>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}


class Encoded(NamedTuple):
    """A text, or a pair of texts, with its special tokens; `segments` says for each token which of the two it is in."""

    ids: list[int]
    segments: list[int]


@dataclass(frozen=True)
class TextTokenizer:
    """What cuts the texts of a pre-trained model. Equal when their files are."""

    files: Mapping[str, bytes] = field(repr=False)  # what `save` writes: the folder's own

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """Read the tokenizer of a model folder."""
        files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        tokenizer = cls(files)
        try:
            tokenizer.library  # noqa: B018 - read now, so that a damaged file is found here
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        except Exception as error:  # `tokenizers` raises bare Exception for a damaged file
            raise CheckpointError(f"cannot read the tokenizer in {folder}: {error}") from error
        return tokenizer

    def save(self, folder: Path) -> None:
        """Write the files it was read from into an existing or new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}  # the library's own pickle forgets some of its settings

    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """Cuts texts in which the names of special tokens are nothing special."""
        library = _read(self.files)
        library.encode_special_tokens = True
        return library

    @cached_property
    def marking(self) -> tokenizers.Tokenizer:
        """Cuts texts in which the names of special tokens, such as [MASK], stand for them."""
        return _read(self.files)

    @cached_property
    def specials(self) -> dict[str, int]:
        """The numbers of the special tokens, by their role."""
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        return {role: vocabulary[token] for role, token in _roles(self.files, self.library).items()}

    @property
    def pad(self) -> int:
        return self.specials.get("pad", 0)

    @property
    def unknown(self) -> int | None:
        return self.specials.get("unknown")

    @property
    def start(self) -> int | None:
        return self.specials.get("start")

    @property
    def end(self) -> int | None:
        return self.specials.get("end")

    @property
    def separator(self) -> int | None:
        return self.specials.get("separator")

    @property
    def mask(self) -> int | None:
        return self.specials.get("mask")

    @cached_property
    def size(self) -> int:
        """How many numbers a model must know: the greatest that can come, and one."""
        return max(self.library.get_vocab(with_added_tokens=True).values()) + 1

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        longest: int | None = None,
        marked: bool = False,
    ) -> list[Encoded]:
        """The numbers of each text, or of each text with its partner in `pairs`, special tokens included.

        What has more than `longest` tokens is cut at its end, the longer text of a pair first. With `marked`, the names
        of special tokens stand for them.
        """
        library = self.marking if marked else self.library
        firsts = [well_formed(text) for text in texts]
        seconds = None if pairs is None else [well_formed(text) for text in pairs]
        rows = firsts if seconds is None else list(zip(firsts, seconds, strict=True))
        found = library.encode_batch(rows)
        if longest is not None:
            for number, cut in enumerate(found):
                if len(cut.ids) > longest:
                    found[number] = self._shortened(library, rows[number], longest)
        return [Encoded(cut.ids, cut.type_ids) for cut in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are skipped."""
        return self.library.decode(list(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The display form of each id."""
        pieces = [self.library.id_to_token(i) or "" for i in ids]
        if isinstance(self.library.decoder, decoders.ByteLevel):  # written in stand-ins for bytes
            special = {*self.specials.values()}
            return [
                piece if i in special else self.library.decoder.decode([piece]).replace(" ", SPACE)
                for i, piece in zip(ids, pieces, strict=True)
            ]
        return pieces

    def spelled(self, token: int) -> tuple[str, bool]:
        """What a token adds to a text, and whether it goes on with the word before it."""
        (piece,) = self.pieces([token])
        if isinstance(self.library.decoder, decoders.WordPiece):
            return piece.removeprefix("##"), piece.startswith("##")
        return piece.replace(SPACE, " ").strip(), not piece.startswith(SPACE)

    def words_of(self, text: str, pair: str | None = None, *, marked: bool = False) -> list[int]:
        """For each id of `encode` the index of the whitespace word it stands for, a partner's words counted on from the
        text's; -1 for special tokens around them."""
        texts = [well_formed(text), *([] if pair is None else [well_formed(pair)])]
        words = [words_of_characters(each) for each in texts]
        before = [0, len(texts[0].split())]
        cut = (self.marking if marked else self.library).encode(texts[0], texts[1] if pair is not None else None)
        return [
            -1 if side is None or not words[side] else before[side] + words[side][max(end, 1) - 1]
            for side, (_, end) in zip(cut.sequence_ids, cut.offsets, strict=True)
        ]

    @staticmethod
    def _shortened(library: tokenizers.Tokenizer, row: str | tuple[str, str], longest: int) -> tokenizers.Encoding:
        parts = [library.encode(text, add_special_tokens=False) for text in ([row] if isinstance(row, str) else row)]
        room = max(0, longest - library.num_special_tokens_to_add(is_pair=len(parts) > 1))
        lengths = _fair([len(part.ids) for part in parts], room)
        for part, length in zip(parts, lengths, strict=True):
            part.truncate(length)
        return library.post_process(parts[0], parts[1] if len(parts) > 1 else None)


def _fair(lengths: list[int], room: int) -> list[int]:
    """Lengths that fit into the room together, the longest shortened first."""
    while sum(lengths) > room:
        longest = lengths.index(max(lengths))
        others = [length for place, length in enumerate(lengths) if place != longest]
        lengths[longest] -= min(sum(lengths) - room, max(1, lengths[longest] - max(others, default=0)))
    return lengths


def _read(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    """A tokenizer of the library from whichever files a folder has."""
    if WHOLE in files:
        library = tokenizers.Tokenizer.from_str(files[WHOLE].decode())
    elif WORDS in files:
        library = _word_pieces(files)
    elif PAIRS in files and MERGES in files:
        library = _byte_pairs(files)
    elif model := next((name for name in SENTENCEPIECE if name in files), ""):
        library = _sentence_pieces(files, model)
    else:
        raise CheckpointError(
            f"no tokenizer is there; expected {WHOLE}, {WORDS}, {PAIRS} with {MERGES}, or {' or '.join(SENTENCEPIECE)}"
        )
    library.no_truncation()  # how long a text may be is the model's business
    library.no_padding()
    if WHOLE not in files:
        _add_tokens(library, files)
    roles = _roles(files, library)
    if library.post_processor is None and (template := _template(library, roles)):
        library.post_processor = template
    return library


def _word_pieces(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    settings = _settings(files, SETTINGS)
    words = files[WORDS].decode().split("\n")
    vocabulary = {word.rstrip("\r"): number for number, word in enumerate(words[:-1] if words[-1] == "" else words)}
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=_token(settings.get("unk_token")) or "[UNK]"))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    library.pre_tokenizer, library.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")
    return library


def _byte_pairs(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    lines = files[MERGES].decode().split("\n")
    merges = [line.split() for line in lines if line.strip() and not line.startswith("#version")]
    if wrong := [merge for merge in merges if len(merge) != 2]:
        raise CheckpointError(f"{MERGES} has the line {' '.join(wrong[0])!r}; expected two pieces on each")
    library = tokenizers.Tokenizer(models.BPE(json.loads(files[PAIRS]), [(a, b) for a, b in merges]))
    spaced = bool(_settings(files, SETTINGS).get("add_prefix_space", False))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=spaced), decoders.ByteLevel()
    return library


def _sentence_pieces(files: Mapping[str, bytes], name: str) -> tokenizers.Tokenizer:
    from sentencepiece import sentencepiece_model_pb2 as protocol

    proto = protocol.ModelProto.FromString(files[name])  # type: ignore[attr-defined]
    if proto.trainer_spec.model_type == proto.trainer_spec.BPE:
        return _llama_pieces(proto)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise CheckpointError(f"{name} is neither a unigram nor a BPE model; save the tokenizer as {WHOLE}")
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id))
    library.normalizer = normalizers.Sequence(
        [
            *(_albert_normalizers(_settings(files, SETTINGS)) if ("[CLS]", 0.0) in pieces else ()),
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    library.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return library


def _llama_pieces(proto: Any) -> tokenizers.Tokenizer:
    """SentencePiece's BPE, as Llama has it: pairs merge by the score of what they make; rare characters are bytes."""
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    whole = [piece for piece in proto.pieces if piece.type == piece.NORMAL]
    merges = [
        (left, right)
        for piece in sorted(whole, key=lambda each: -each.score)
        for left, right in sorted(
            ((piece.piece[:cut], piece.piece[cut:]) for cut in range(1, len(piece.piece))),
            key=lambda pair: (ids.get(pair[0], 0), ids.get(pair[1], 0)),
        )
        if left in ids and right in ids
    ]
    unknown = proto.pieces[proto.trainer_spec.unk_id].piece
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=proto.trainer_spec.byte_fallback)
    library = tokenizers.Tokenizer(model)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    library.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            *([normalizers.Prepend(SPACE)] if proto.normalizer_spec.add_dummy_prefix else []),
            normalizers.Replace(" ", SPACE),
        ]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    start = proto.trainer_spec.bos_id
    if start >= 0:
        token = proto.pieces[start].piece
        library.post_processor = TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, start)]
        )
    return library


def _albert_normalizers(settings: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """What ALBERT does to a text before SentencePiece sees it."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if settings.get("do_lower_case", True) else steps


def _add_tokens(library: tokenizers.Tokenizer, files: Mapping[str, bytes]) -> None:
    """Tell the library which tokens are special, and those that were added to the vocabulary later."""
    added = _settings(files, ADDED)
    library.add_tokens(sorted(added, key=lambda token: added[token]))
    if wrong := [token for token, number in added.items() if library.token_to_id(token) != number]:
        raise CheckpointError(f"{ADDED} numbers {wrong[0]!r} as {added[wrong[0]]}, which is not the next free number")
    for role, token in _roles(files, library).items():
        library.add_special_tokens([AddedToken(token, lstrip=role == "mask" and MERGES in files)])


def _roles(files: Mapping[str, bytes], library: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens of a folder by role: as it declares them, else those with the usual names."""
    declared = {**_settings(files, SETTINGS), **_settings(files, SPECIALS)}
    found = {}
    for role, (keys, usual) in ROLES.items():
        candidates = [*(_token(declared.get(key)) for key in keys), *usual]
        known = [token for token in candidates if token and library.token_to_id(token) is not None]
        if known:
            found[role] = known[0]
    return found


def _template(library: tokenizers.Tokenizer, roles: Mapping[str, str]) -> processors.PostProcessor | None:
    """How special tokens are put around texts where no file says so: as BERT, RoBERTa or T5 do."""
    start, end = roles.get("start", ""), roles.get("separator", "")
    vocabulary = library.get_vocab(with_added_tokens=True)
    tokens = [(token, vocabulary[token]) for token in (start, end) if token]
    if end == "</s>" and not start:
        return TemplateProcessing(single="$A </s>", pair="$A </s> $B:0 </s>:0", special_tokens=tokens)
    if not (start and end) or start == end:  # GPT-2 has one token between texts and puts none around them
        return None
    if start == "<s>":
        return processors.RobertaProcessing(tokens[1], tokens[0], trim_offsets=True, add_prefix_space=False)
    return TemplateProcessing(single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1", special_tokens=tokens)


def _settings(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    values = json.loads(files.get(name, b"{}"))
    if not isinstance(values, dict):
        raise CheckpointError(f"{name} holds a JSON {type(values).__name__}; expected an object")
    return values


def _token(value: Any) -> str:
    """A token as folders write it: its text, or an object that has it as content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
