"""regard transcribe: what is said in audio files, with times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.errors import DataError, UsageError, with_article
from regard.verbs.files import GivenFiles, SkipBad, free_name, tell_skipped
from regard.verbs.options import AllowPickle, Device, Model, Without, switch_off

if TYPE_CHECKING:
    from regard.families.speech.pipeline import TranscribeOptions, Transcriber, Transcript

Format = Literal["text", "json", "srt", "vtt"]
SUFFIXES: dict[str, Format] = {".txt": "text", ".json": "json", ".srt": "srt", ".vtt": "vtt"}
ENDINGS = {form: suffix for suffix, form in SUFFIXES.items()}


def transcribe(
    context: typer.Context,
    model: Model,
    audio: Annotated[
        list[str] | None,
        typer.Argument(
            help="Audio files (WAV, FLAC, OGG, MP3; any rate, any length), folders of them, or - for one on stdin; "
            "without any, lines of stdin."
        ),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Text: one line a segment, with its times.")] = False,
    words: Annotated[bool, typer.Option("--words", help="JSON: also the times of words.")] = False,
    language: Annotated[str, typer.Option(help="What is spoken, such as en. Default: the model finds out.")] = "",
    prompt: Annotated[str, typer.Option(help="A text before the audio, with names as they are spelt.")] = "",
    form: Annotated[
        Format | None, typer.Option("--format", help="text, json, srt or vtt. Default: by the name of -o, else text.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file for one recording, or a folder for several.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy. Default: the model's own.")] = None,
    skip_bad: SkipBad = False,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Write down what is said: one line out for each file, or subtitles.

    Long files are cut where they are quiet. `regard translate` goes on from subtitles.

    Example: regard transcribe talk.flac -m whisper-small --format srt -o talk.srt
    """
    from regard.data.files import write_whole
    from regard.families.speech.audio import SUFFIXES as AUDIO
    from regard.families.speech.audio import audio_info

    given = GivenFiles(audio, AUDIO)
    names = list(given.names())
    form = form or (SUFFIXES.get(output.suffix.lower(), "text") if output else "text")
    folder, taken = _folder(output, names, form), set[Path]()
    if words and form != "json":
        raise UsageError(f"--words are written to JSON, not to {form}; add --format json")
    if not skip_bad:  # nothing is written if a later file cannot be read
        for file in names:
            audio_info(given.source(file))
    transcriber, options = _loaded(model, device, allow_pickle), _options(language, prompt, words)
    switch_off(context, transcriber, without)
    options = options.replace(timestamps=timestamps or form != "text")
    if beam is not None:
        options = options.replace(settings=transcriber.settings.replace(beam=beam))
    skipped = []
    answers = transcriber.stream(given.sources(names), options)
    for file, found in zip(names, answers, strict=True):
        if isinstance(found, DataError):
            if not skip_bad:
                raise found
            skipped.append(file)
            print(f"regard: skipped: {found}", file=sys.stderr)
            if output is None and form == "text" and not timestamps:
                print()  # a line for each file, so that lines and files go together
            continue
        written = _written(file, found, form, timestamps, named=output is None and len(names) > 1)
        if output is None:
            print(written, end="", flush=True)
        else:
            place = output if folder is None else free_name(folder, file, ENDINGS[form], taken)
            write_whole(place, written)
            print(f"{file} transcribed to {place}", file=sys.stderr)
    tell_skipped(skipped, len(names))


def _folder(output: Path | None, audio: list[str], form: Format) -> Path | None:
    """The folder that several transcripts are written to; None for one file or standard output."""
    if output is None:
        if len(audio) > 1 and form in ("srt", "vtt"):
            raise UsageError(f"{len(audio)} files make as many {form} files; name a folder for them: -o FOLDER")
        return None
    if output.suffix.lower() not in SUFFIXES:
        return output
    if len(audio) > 1:
        raise UsageError(f"{output} is one file; give one recording, or a folder for the transcripts of several")
    return None


def _loaded(model: str, device: str, allow_pickle: bool) -> Transcriber:
    import regard
    from regard.families.loading import models_that
    from regard.families.speech.pipeline import Transcriber

    found: Any = regard.load(model, device=device, allow_pickle=allow_pickle)
    if not isinstance(found, Transcriber):
        expected = " or ".join(models_that("transcribe"))
        raise UsageError(
            f"{model} is {with_article(type(found).__name__)}, which transcribes no audio; "
            f"expected {with_article(expected)}"
        )
    return found


def _options(language: str, prompt: str, words: bool) -> TranscribeOptions:
    from regard.families.speech.pipeline import TranscribeOptions

    return TranscribeOptions(language=language, prompt=prompt, words=words)


def _written(file: str, found: Transcript, form: Format, timestamps: bool, *, named: bool) -> str:
    """The content of a file, or what is printed; `named`: segments are told apart by the name of their file."""
    from regard.documents.subtitles import Cue, write_srt, write_vtt

    if form == "json":
        return json.dumps({"audio": file, **found.to_json()}, ensure_ascii=False) + "\n"
    if form in ("srt", "vtt"):
        cues = [Cue(segment.start, segment.end, segment.text) for segment in found.segments]
        return write_srt(cues) if form == "srt" else write_vtt(cues)
    if not timestamps:
        return found.text + "\n"
    first = f"{file}\t" if named else ""
    return "".join(f"{first}{each.start:.2f}\t{each.end:.2f}\t{each.text.strip()}\n" for each in found.segments)
