"""Language models, text encoders and word vectors: BERT, GPT, T5, ELMo, LSTM, word2vec."""

from regard.families.contract import ANY_HEAD, USE, Family, FormEntry, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "bert": ModelEntry(
            "bert.Bert",
            "bert.BertConfig",
            "BERT",
            "text_encoder",
            ("masked", "classification", "tags", "answers"),
            {"": 30_522, "roberta": 50_265, "albert": 30_000, "esm2-8m": 33, "esm2-650m": 33},
        ),
        "gpt": ModelEntry(
            "gpt.Gpt",
            "gpt.GptConfig",
            "GPT",
            "language_model",
            ("language", "pixels"),
            {"": 50_257, "llama-7b": 32_000},
        ),
        "lstm": ModelEntry("lstm.Lstm", "lstm.LstmConfig", "LSTM", "language_model", ("language",)),
        "word2vec": ModelEntry(
            "word_vectors.Word2Vec", "word_vectors.Word2VecConfig", "Word vectors", "word_vectors", ("words",)
        ),
        "elmo": ModelEntry("elmo.Elmo", "elmo.ElmoConfig", "ELMo", "text_encoder", ("language", "classification")),
        "t5": ModelEntry(
            "t5.T5", "t5.T5Config", "T5", "text_to_text", ("prompts", "spans", "translation"), {"": 32_128}
        ),
    },
    tasks={
        "language": TaskEntry("recipe.LanguageRecipe", "modelling.LanguageTask"),
        "words": TaskEntry("recipe.WordsRecipe", "words.WordVectorTask"),
        "masked": TaskEntry("recipe.MaskedRecipe", "denoising.MaskedTask"),
        "classification": TaskEntry("recipe.ClassificationRecipe", "classification.TextClassificationTask"),
        "tags": TaskEntry("recipe.TagsRecipe", "token_heads.TaggingTask"),
        "answers": TaskEntry("recipe.AnswersRecipe", "token_heads.AnsweringTask"),
        "spans": TaskEntry("recipe.SpansRecipe", "denoising.SpanCorruptionTask"),
        "prompts": TaskEntry("recipe.PromptsRecipe", "prompts.PromptsTask"),
    },
    pipelines={
        "language_model": PipelineEntry(
            "language_models.LanguageModel",
            "write",
            {ANY_HEAD: 'print(model.generate("Once upon a time").text)'},
            takes_precision=True,
            for_images="pixel_generator",
            view="view.inspect_writer",
            evaluation="writer_verbs.TextEvaluation",
            reader="reader.LanguageModelReader",
        ),
        "text_to_text": PipelineEntry(
            "language_models.TextToText",
            "write",
            {ANY_HEAD: 'print(model.generate("Translate EN-ES: we are eating bread").text)'},
            takes_precision=True,
            answers=True,
            view="view.inspect_writer",
            evaluation="writer_verbs.TextEvaluation",
            reader="reader.PromptReader",
        ),
        "text_encoder": PipelineEntry(
            "encoder.TextEncoder",
            "embed",
            {
                ANY_HEAD: 'print(model.embed("we are eating bread"))',
                "masked": 'print(model.fill("we are [MASK] bread"))',
                "pretraining": 'print(model.fill("we are [MASK] bread"))',
                "classify": 'print(model.classify("we are eating bread"))',
                "tags": 'print(model.tag("Anna lives in New York"))',
                "answer": 'print(model.answer("Where does Anna live?", "Anna lives in New York.")[0].text)',
            },
            view="view.inspect_encoder",
            evaluate="classification.evaluate_texts",
            reader="reader.encoder_reader",
            files="sentence_embedding.sentence_files",
        ),
        "word_vectors": PipelineEntry(
            "word_vectors.WordVectors", "embed", {ANY_HEAD: 'print(model.neighbours("bread"))'}
        ),
    },
    forms={"word2vec": FormEntry("word_vectors.convert_to_text", ("word2vec",))},
    verbs={
        "generate": VerbEntry("writer_verbs.Generate", "Write on from a prompt, or answer it; make images", USE),
        "embed": VerbEntry("verbs.Embed", "Turn texts into vectors; find the nearest words", USE),
        "embed/neighbours": VerbEntry("verbs.Neighbours"),
        "read/classify": VerbEntry("verbs.Classify"),
        "read/tag": VerbEntry("verbs.Tag"),
        "read/answer": VerbEntry("verbs.Answer"),
        "read/fill": VerbEntry("verbs.Fill"),
    },
)
