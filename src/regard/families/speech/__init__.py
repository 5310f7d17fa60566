"""Speech: Conformer (Gulati et al. 2020) with CTC, a decoder or both, and Whisper (Radford et al. 2022)."""

from regard.families.contract import ANY_HEAD, AUDIO, USE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

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
        "speech_recognizer": PipelineEntry(
            "pipeline.SpeechRecognizer",
            "transcribe",
            {ANY_HEAD: 'print(model.transcribe("recording.wav")[0].text)'},
            input=AUDIO,
            view="view.inspect_speech",
            evaluate="task.evaluate_speech",
            evaluate_options=("beam",),
            reader="reader.SpeechReader",
            examples="data.examples",
        ),
        "whisper_transcriber": PipelineEntry(
            "whisper_pipeline.WhisperTranscriber",
            "transcribe",
            {ANY_HEAD: 'print(model.transcribe("speech.wav")[0].text)'},
            input=AUDIO,
            view="view.inspect_speech",
            evaluate="task.evaluate_speech",
            evaluate_options=("beam",),
            reader="reader.WhisperReader",
            examples="data.examples",
        ),
    },
    figures={"spectrogram": "view.draw_speech"},
    views={"spectrogram": "spectrogram.js"},
    page="page.js",
    verbs={"transcribe": VerbEntry("verbs.Transcribe", "Write down what is said, as text or subtitles", USE)},
)
