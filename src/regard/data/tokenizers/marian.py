"""Read the tokenizer of a Marian translation model in Hugging Face's format.

A folder has two SentencePiece models that only segment text (`source.spm`, `target.spm`) and a table from pieces to ids
(`vocab.json`; with `separate_vocabs`, `target_vocab.json` for the target side). Decoding starts from `<pad>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.data.tokenizers.base import Tokenizer, read_languages, well_formed, words_of_pieces, written_languages
from regard.errors import CheckpointError

REQUIRED = ("source.spm", "target.spm", "vocab.json")
OPTIONAL = ("target_vocab.json", "tokenizer_config.json")


class MarianTokenizer(Tokenizer):
    """One side of a Marian model: SentencePiece segments, the vocabulary file has the ids; other pieces are unknown."""

    def __init__(self, model: bytes, ids: Mapping[str, int]) -> None:
        import sentencepiece  # only the tokenizers of Marian folders need it

        vocabulary = _by_id(ids)
        pad = ids["<pad>"]
        super().__init__(vocabulary, pad=pad, start=pad, end=ids["</s>"], unknown=ids["<unk>"])
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
        # User text must not produce special tokens, even if the SentencePiece model has them as pieces.
        self._ids = {piece: i for piece, i in ids.items() if i not in self.specials}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(piece, self.unknown) for piece in pieces] for pieces in self._cut(texts)]

    def words_in(self, text: str) -> list[int]:
        return words_of_pieces(self._cut([text])[0])

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        return self._model.encode([well_formed(text) for text in texts], out_type=str)


def read_marian(folder: Path) -> dict[str, bytes]:
    """The files of the tokenizer of a Marian folder."""
    if missing := [name for name in REQUIRED if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{folder} looks like a Marian model but has no {', '.join(missing)}; copy the whole model folder."
        )
    return {name: (folder / name).read_bytes() for name in (*REQUIRED, *OPTIONAL) if (folder / name).is_file()}


def marian_files(
    source_model: bytes, target_model: bytes, source: str | Sequence[str], targets: Sequence[str], where: str
) -> dict[str, bytes]:
    """The files of a Marian folder for SentencePiece models of one's own; equal models share one vocabulary.

    Marian's table has the end of a sentence first and `<pad>` last; a tag for each of several targets comes before it.
    """
    tags = [f">>{code}<<" for code in targets] if len(targets) > 1 else []
    models = [source_model] if source_model == target_model else [source_model, target_model]
    tables = [_numbered([*_pieces(model, where), *(tags if side == 0 else [])]) for side, model in enumerate(models)]
    settings = {"source_lang": written_languages(source), "target_lang": targets[0], "targets": list(targets)}
    names = ("vocab.json", "target_vocab.json")
    return {
        "source.spm": source_model,
        "target.spm": target_model,
        "tokenizer_config.json": _json(settings | {"separate_vocabs": len(models) > 1}),
        **{name: _json(table) for name, table in zip(names, tables, strict=False)},
    }


def _pieces(model: bytes, where: str) -> list[str]:
    """The pieces of a SentencePiece model that text consists of."""
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise CheckpointError(
            f"{where}: not a SentencePiece model ({error}); spm_train writes one as NAME.model"
        ) from None
    if any(map(processor.is_byte, range(processor.get_piece_size()))):
        raise CheckpointError(f"{where}: has pieces for bytes; train it again without byte_fallback")
    ids = (i for i in range(processor.get_piece_size()) if not (processor.is_control(i) or processor.is_unknown(i)))
    return [processor.id_to_piece(i) for i in ids]


def _numbered(pieces: Sequence[str]) -> dict[str, int]:
    special = {"</s>", "<unk>", "<pad>"}
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *(p for p in pieces if p not in special), "<pad>"])}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def marian_sides(
    files: Mapping[str, bytes], where: str
) -> tuple[MarianTokenizer, MarianTokenizer, tuple[str, ...], tuple[str, ...]]:
    """The source and target tokenizers of a Marian folder, and its languages; `where` names it in errors."""
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    target_table = "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json"
    if target_table not in files:
        raise CheckpointError(f"{where} has separate vocabularies but no {target_table}; copy the whole model folder.")
    source = _side(where, files, "source.spm", "vocab.json")
    target = _side(where, files, "target.spm", target_table)
    languages = tuple(settings.get("targets") or source.tags) or (settings.get("target_lang") or "",)
    return source, target, read_languages(settings.get("source_lang") or ""), languages


def _side(where: str, files: Mapping[str, bytes], model: str, table: str) -> MarianTokenizer:
    try:
        return MarianTokenizer(files[model], json.loads(files[table]))
    except (ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{where}: {model} or {table} is not a Marian tokenizer ({error!r}); copy the file from the model again."
        ) from error


def _by_id(ids: Mapping[str, int]) -> list[str]:
    """Pieces in the order of their ids; unused ids are the unknown token."""
    vocabulary = ["<unk>"] * (max(ids.values()) + 1)
    for piece, i in ids.items():
        vocabulary[i] = piece
    return vocabulary
