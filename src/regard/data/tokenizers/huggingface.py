"""Read the tokenizer files of a Hugging Face folder as one tokenizer of the `tokenizers` library.

Supported are `tokenizer.json`; the `vocab.txt` of BERT and of ESM-2; `vocab.json` with `merges.txt` (RoBERTa, GPT-2);
the SentencePiece file of ALBERT, T5 and Llama; and `tokens.json`, the pieces of a small Llama with their scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.processors import TemplateProcessing

from regard.data.tokenizers.base import SPACE
from regard.errors import CheckpointError

WHOLE, WORDS, PAIRS, MERGES = "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"
SENTENCEPIECE = ("spiece.model", "sentencepiece.model", "tokenizer.model")
SETTINGS, SPECIALS, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TEMPLATE = "chat_template.jinja"
SCORED = "tokens.json"  # [text, score] of every piece in the order of their numbers, as llama2.c has them
RESIDUE_MARKS = {"<cls>", "<pad>", "<eos>", "<unk>", "<mask>"}  # special tokens in a vocabulary of residues
FILES = (WHOLE, WORDS, PAIRS, MERGES, *SENTENCEPIECE, SCORED, SETTINGS, SPECIALS, ADDED, TEMPLATE)
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # keys in the settings files, and default tokens
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
    "unknown": (("unk_token",), ("[UNK]", "<unk>")),
    "start": (("cls_token", "bos_token"), ("[CLS]", "<s>", "<cls>", "<|endoftext|>")),
    "end": (("eos_token", "sep_token"), ("[SEP]", "</s>", "<eos>", "<|endoftext|>")),
    "separator": (("sep_token", "eos_token"), ("[SEP]", "</s>", "<eos>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}


def read_tokenizer(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    """A tokenizer of the library from whichever files a folder has."""
    if WHOLE in files:
        library = tokenizers.Tokenizer.from_str(files[WHOLE].decode())
        _settle_normalizer(library, read_settings(files, SETTINGS))
    elif WORDS in files:
        words = _words(files)
        library = _letters(words) if words.keys() >= RESIDUE_MARKS else _word_pieces(files, words)
    elif PAIRS in files and MERGES in files:
        library = _byte_pairs(files)
    elif model := next((name for name in SENTENCEPIECE if name in files), ""):
        library = _sentence_pieces(files, model)
    elif SCORED in files:
        library = _scored_pieces(files)
    else:
        raise CheckpointError(
            f"no tokenizer is there; expected {WHOLE}, {WORDS}, {PAIRS} with {MERGES}, or {' or '.join(SENTENCEPIECE)}"
        )
    library.no_truncation()  # the model limits the length, not the tokenizer
    library.no_padding()
    if WHOLE not in files:
        _add_tokens(library, files)
    roles = special_tokens(files, library)
    if library.post_processor is None and (template := _template(library, roles)):
        library.post_processor = template
    return library


def _settle_normalizer(library: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """If both files configure BERT's normaliser, tokenizer_config.json takes precedence, as in transformers."""
    if isinstance(library.normalizer, normalizers.BertNormalizer):
        values = {
            ours: settings.get(theirs, getattr(library.normalizer, ours))
            for ours, theirs in (
                ("lowercase", "do_lower_case"),
                ("strip_accents", "strip_accents"),
                ("handle_chinese_chars", "tokenize_chinese_chars"),
            )
        }
        library.normalizer = normalizers.BertNormalizer(clean_text=library.normalizer.clean_text, **values)


def _words(files: Mapping[str, bytes]) -> dict[str, int]:
    words = files[WORDS].decode().split("\n")
    return {word.rstrip("\r"): number for number, word in enumerate(words[:-1] if words[-1] == "" else words)}


def _letters(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """ESM-2's tokens: every letter of the vocabulary is one, and anything between two of them is one unknown token."""
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    letters = Regex("[" + "".join(rf"\x{{{ord(word):x}}}" for word in vocabulary if len(word) == 1) + "]")
    split = pre_tokenizers.Split(letters, "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    library.decoder = decoders.Fuse()
    return library


def _word_pieces(files: Mapping[str, bytes], vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    settings = read_settings(files, SETTINGS)
    unknown = token_text(settings.get("unk_token")) or "[UNK]"
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
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
    spaced = bool(read_settings(files, SETTINGS).get("add_prefix_space", False))
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
            *(_albert_normalizers(read_settings(files, SETTINGS)) if ("[CLS]", 0.0) in pieces else ()),
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    library.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return library


def _llama_pieces(proto: Any) -> tokenizers.Tokenizer:
    """Llama's BPE of SentencePiece: merges are ordered by the score of their result; rare characters become bytes."""
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merges = _merges(ids, {piece.piece: piece.score for piece in proto.pieces if piece.type == piece.NORMAL})
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


def _merges(ids: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges of a BPE whose pieces have scores: those with the best result first."""
    return [
        (left, right)
        for piece in sorted(scores, key=lambda each: -scores[each])
        for left, right in sorted(
            ((piece[:cut], piece[cut:]) for cut in range(1, len(piece))),
            key=lambda pair: (ids.get(pair[0], 0), ids.get(pair[1], 0)),
        )
        if left in ids and right in ids
    ]


def _scored_pieces(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    """A BPE of pieces with scores, in which spaces are spaces; bytes stand for what is in no piece."""
    pieces: list[tuple[str, float]] = [(text.strip("\n") or text, score) for text, score in json.loads(files[SCORED])]
    ids = {text: number for number, (text, _) in enumerate(pieces)}
    marks = {"<unk>", "<s>", "</s>", *(text for text in ids if len(text) == 6 and text.startswith("<0x"))}
    merges = _merges(ids, {text: score for text, score in pieces if text not in marks})
    library = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Prepend(" ")
    library.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", ids["<s>"])])
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return library


def _albert_normalizers(settings: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """ALBERT's normalisation before SentencePiece."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if settings.get("do_lower_case", True) else steps


def _add_tokens(library: tokenizers.Tokenizer, files: Mapping[str, bytes]) -> None:
    """Register the special tokens, and the tokens of added_tokens.json."""
    added = read_settings(files, ADDED)
    library.add_tokens(sorted(added, key=lambda token: added[token]))
    if wrong := [token for token, number in added.items() if library.token_to_id(token) != number]:
        raise CheckpointError(f"{ADDED} numbers {wrong[0]!r} as {added[wrong[0]]}, which is not the next free number")
    for role, token in special_tokens(files, library).items():
        library.add_special_tokens([AddedToken(token, lstrip=role == "mask" and MERGES in files)])


def special_tokens(files: Mapping[str, bytes], library: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens of a folder by role: the declared ones, else those with default names."""
    declared = {**read_settings(files, SETTINGS), **read_settings(files, SPECIALS)}
    found = {}
    for role, (keys, usual) in ROLES.items():
        candidates = [*(token_text(declared.get(key)) for key in keys), *usual]
        known = [token for token in candidates if token and library.token_to_id(token) is not None]
        if known:
            found[role] = known[0]
    return found


def _template(library: tokenizers.Tokenizer, roles: Mapping[str, str]) -> processors.PostProcessor | None:
    """The default template of special tokens around texts: that of BERT, RoBERTa or T5."""
    start, end = roles.get("start", ""), roles.get("separator", "")
    vocabulary = library.get_vocab(with_added_tokens=True)
    tokens = [(token, vocabulary[token]) for token in (start, end) if token]
    if end == "</s>" and not start:
        return TemplateProcessing(single="$A </s>", pair="$A </s> $B:0 </s>:0", special_tokens=tokens)
    if not (start and end) or start == end:  # GPT-2 adds no special tokens
        return None
    if start == "<s>":
        return processors.RobertaProcessing(tokens[1], tokens[0], trim_offsets=True, add_prefix_space=False)
    return TemplateProcessing(single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1", special_tokens=tokens)


def read_settings(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    values = json.loads(files.get(name, b"{}"))
    if not isinstance(values, dict):
        raise CheckpointError(f"{name} holds a JSON {type(values).__name__}; expected an object")
    return values


def token_text(value: Any) -> str:
    """The text of a token, which settings files give as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
