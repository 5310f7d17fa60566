"""Translation: sentence pairs to a translator (Bahdanau et al. 2015, Vaswani et al. 2017)."""

from regard.families.contract import (
    ANY_HEAD,
    TRAIN,
    TRANSLATOR,
    USE,
    Family,
    FormEntry,
    ModelEntry,
    PipelineEntry,
    TaskEntry,
    VerbEntry,
)

FAMILY = Family(
    __name__,
    models={
        "transformer": ModelEntry(
            "transformer.Transformer",
            "transformer.TransformerConfig",
            "Transformer",
            TRANSLATOR,
            ("translation",),
            huggingface="marian",
        ),
        "seq2seq": ModelEntry(
            "seq2seq.Seq2Seq", "seq2seq.Seq2SeqConfig", "Recurrent network", TRANSLATOR, ("translation",)
        ),
    },
    tasks={"translation": TaskEntry("recipe.TranslationRecipe", "task.TranslationTask")},
    pipelines={
        TRANSLATOR: PipelineEntry(
            "translator.Translator",
            "translate",
            {ANY_HEAD: 'print(model.translate("we are eating bread").text)'},
            takes_precision=True,
            view="view.inspect_translator",
            evaluation="evaluate_verb.TranslatorEvaluation",
            default_model="shipped.shipped_folder",
            built_in="shipped.ShippedTranslator",
            reader="view.PairReader",
            files="quality.calibration_files",
        ),
    },
    forms={
        "marian": FormEntry("marian.convert_to_marian", ("transformer",)),
        "ctranslate2": FormEntry("ctranslate2.convert_to_ctranslate2", ("transformer",)),
        "onnx": FormEntry("onnx.convert_to_onnx", ("transformer", "bert", "gpt")),
    },
    verbs={
        "translate": VerbEntry("verbs.Translate", "Translate texts, lines of stdin, or whole documents", USE),
        "data": VerbEntry("data_verb.data", "Prepare, filter and make sentence pairs", TRAIN),
    },
)
