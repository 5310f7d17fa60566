"""regard transcribe: what is said in audio files, with times."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.inputs import free_name
from regard.verbs.options import Beam
from regard.verbs.verb import FileVerb

if TYPE_CHECKING:
    from regard.families.speech.pipeline import Transcript

Format = Literal["text", "json", "srt", "vtt"]
SUFFIXES: dict[str, Format] = {".txt": "text", ".json": "json", ".srt": "srt", ".vtt": "vtt"}
ENDINGS = {form: suffix for suffix, form in SUFFIXES.items()}


@dataclass(kw_only=True)
class Transcribe(FileVerb):
    """Write down what is said: one line out for each file, or subtitles.

    Long files are cut where they are quiet. `regard translate` goes on from subtitles. A file that cannot be read comes
    out as an empty line with a message on stderr, and the exit code is 1; where files are written, nothing is written
    then. With --skip-bad such a file is left out, counted and named.

    Example: regard transcribe talk.flac -m whisper-small --format srt -o talk.srt
    """

    abilities, method, does, files_of = ("transcribe",), "transcribe", "transcribe audio", "audio"

    audio: Annotated[
        list[str] | None,
        typer.Argument(
            help="Audio files (WAV, FLAC, OGG, MP3; any rate, any length), folders of them, or - for one on stdin; "
            "without any, lines of stdin."
        ),
    ] = None
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Text: one line a segment, with its times.")] = False
    words: Annotated[bool, typer.Option("--words", help="JSON: also the times of words.")] = False
    language: Annotated[str, typer.Option(help="What is spoken, such as en. Default: the model finds out.")] = ""
    prompt: Annotated[str, typer.Option(help="A text before the audio, with names as they are spelt.")] = ""
    form: Annotated[
        Format | None, typer.Option("--format", help="text, json, srt or vtt. Default: by the name of -o, else text.")
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file for one recording, or a folder for several.")
    ] = None
    beam: Beam = None

    @property
    def suffixes(self) -> Sequence[str]:  # type: ignore[override]  # imported when it is needed
        from regard.families.speech.audio import SUFFIXES

        return SUFFIXES

    def read(self, source: str | bytes) -> object:
        from regard.families.speech.audio import check_audio

        check_audio(source)
        return source

    def writes(self) -> bool:
        return self.output is not None

    def check(self) -> None:
        named = SUFFIXES.get(self.output.suffix.lower(), "text") if self.output else "text"
        self.form = self.form or ("json" if self.as_json else named)
        if self.output is None and self.form in ("srt", "vtt") and len(self.names) > 1:
            count = len(self.names)
            raise UsageError(f"{count} files make as many {self.form} files; name a folder for them: -o FOLDER")
        self.taken = set[Path]()
        self.single = self.output is not None and self.output.suffix.lower() in SUFFIXES
        if self.single:
            self.one_file(self.output, "recording", "a folder for the transcripts of several")
        if self.words and self.form != "json":
            raise UsageError(f"--words are written to JSON, not to {self.form}; add --format json")
        super().check()

    def inputs(self) -> list[str]:
        return self.names

    def answers(self, inputs: list[str]) -> Any:
        from regard.families.speech.pipeline import TranscribeOptions

        options = TranscribeOptions(
            language=self.language, prompt=self.prompt, words=self.words,
            timestamps=self.timestamps or self.form != "text",
        )  # fmt: skip
        if self.beam is not None:
            options = options.replace(settings=self.pipeline.settings.replace(beam=self.beam))
        return self.pipeline.stream(self.files.sources(inputs), options)

    def line(self, given: str, answer: Transcript | None) -> str | None:
        if self.output is not None:
            return None
        if answer is None:
            return "null" if self.form == "json" else ""
        text = self.as_text(given, answer)
        return text.removesuffix("\n") if text else None

    def as_text(self, given: str, answer: Transcript) -> str:
        """The content of a file, or what is printed."""
        from regard.documents.subtitles import Cue, write_srt, write_vtt

        if self.form == "json":
            return json.dumps({"audio": given, **answer.to_json()}, ensure_ascii=False) + "\n"
        if self.form in ("srt", "vtt"):
            cues = [Cue(segment.start, segment.end, segment.text) for segment in answer.segments]
            return write_srt(cues) if self.form == "srt" else write_vtt(cues)
        if not self.timestamps:
            return answer.text + "\n"
        first = f"{given}\t" if self.output is None and len(self.names) > 1 else ""  # whose segments they are
        return "".join(f"{first}{each.start:.2f}\t{each.end:.2f}\t{each.text.strip()}\n" for each in answer.segments)

    def note(self, given: str, answer: Transcript | None) -> None:
        """Write a transcript as soon as it is there: the others may take long."""
        if self.output is not None and self.form is not None and answer is not None:
            place = self.output if self.single else free_name(self.output, given, ENDINGS[self.form], self.taken)
            write_whole(place, self.as_text(given, answer))
            print(f"{given} transcribed to {place}", file=sys.stderr)
