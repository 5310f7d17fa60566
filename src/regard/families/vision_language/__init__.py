"""Texts and images: ViLBERT (Lu et al. 2019): match, retrieval, pointing, questions about images."""

from regard.families.contract import ANY_HEAD, IMAGE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "vilbert": ModelEntry(
            "model.Vilbert",
            "model.VilbertConfig",
            "ViLBERT",
            "vision_language",
            ("vision_language", "retrieval", "pointing", "questions"),
            {"": 30_522},
        )
    },
    tasks={
        "vision_language": TaskEntry("recipe.VisionLanguageRecipe", "task.VisionLanguageTask"),
        "retrieval": TaskEntry("recipe.RetrievalRecipe", "task.RetrievalTask"),
        "pointing": TaskEntry("recipe.PointingRecipe", "task.PointingTask"),
        "questions": TaskEntry("recipe.QuestionsRecipe", "task.QuestionsTask"),
    },
    pipelines={
        "vision_language": PipelineEntry(
            "pipeline.VisionLanguageModel",
            "compare",
            {
                ANY_HEAD: 'print(model.match("image.png", ["a red circle", "a blue square"])[0])',
                "point": 'print(model.point("image.png", "the red circle")[0].box)',
                "answer": 'print(model.answer("image.png", "what colour is the large ring")[0].label)',
            },
            input=IMAGE,
            text_label="Text or question",
            view="view.inspect_regions",
            evaluate="task.evaluate_regions",
            reader="reader.RegionTextReader",
        )
    },
    page="page.js",
    verbs={"match": VerbEntry("verbs.MatchVerb", "Match images with texts, point, answer questions")},
)
