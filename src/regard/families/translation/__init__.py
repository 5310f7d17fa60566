"""Translation: sentence pairs to a translator (Bahdanau et al. 2015, Vaswani et al. 2017)."""

from regard.families.contract import ANY_HEAD, TRANSLATOR, Family, ModelEntry, PipelineEntry, TaskEntry

FAMILY = Family(
    __name__,
    models={
        "transformer": ModelEntry(
            "transformer.Transformer", "transformer.TransformerConfig", "Transformer", TRANSLATOR, ("translation",)
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
        ),
    },
    verbs={"translate": "verbs.Translate", "data": "data_verb.data"},
)
