"""Speech: Conformer (Gulati et al. 2020) with CTC, a decoder or both, and Whisper (Radford et al. 2022)."""

from regard.families.contract import ANY_HEAD, AUDIO, USE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry


def _transcriber(class_name: str, file: str, reader: str) -> PipelineEntry:
    return PipelineEntry(
        class_name,
        "transcribe",
        {ANY_HEAD: f'print(model.transcribe("{file}")[0].text)'},
        input=AUDIO,
        view="view.inspect_speech",
        evaluate="task.evaluate_speech",
        evaluate_options=("beam",),
        reader=reader,
        examples="data.examples",
        files="features.processor_files",
    )


FAMILY = Family(
    __name__,
    models={
        "conformer": ModelEntry(
            "conformer.Conformer",
            "conformer.ConformerConfig",
            "Conformer",
            "speech_recognizer",
            ("speech",),
            {"": 1024},
        ),
        "whisper": ModelEntry(
            "whisper.Whisper",
            "whisper.WhisperConfig",
            "Whisper",
            "whisper_transcriber",
            vocabulary={"": 51_865, "large-v3": 51_866, "turbo": 51_866},
        ),
    },
    tasks={"speech": TaskEntry("recipe.SpeechRecipe", "task.SpeechTask")},
    pipelines={
        "speech_recognizer": _transcriber("pipeline.SpeechRecognizer", "recording.wav", "reader.SpeechReader"),
        "whisper_transcriber": _transcriber(
            "whisper_pipeline.WhisperTranscriber", "speech.wav", "reader.WhisperReader"
        ),
    },
    figures={"spectrogram": "view.draw_speech"},
    views={"spectrogram": "spectrogram.js"},
    page="page.js",
    verbs={"transcribe": VerbEntry("verbs.Transcribe", "Write down what is said, as text or subtitles", USE)},
)
