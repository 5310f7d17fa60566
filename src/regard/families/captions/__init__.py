"""Captions: Show, Attend and Tell (Xu et al. 2015), soft and hard attention over any image model."""

from regard.families.contract import ANY_HEAD, IMAGE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "captioner": ModelEntry(
            "model.Captioner", "model.CaptionerConfig", "Captioner", "image_captioner", ("captioning",)
        )
    },
    tasks={"captioning": TaskEntry("recipe.CaptioningRecipe", "task.CaptioningTask")},
    pipelines={
        "image_captioner": PipelineEntry(
            "pipeline.ImageCaptioner",
            "caption",
            {ANY_HEAD: 'print(model.caption("image.png")[0].text)'},
            input=IMAGE,
            view="view.inspect_caption",
            evaluate="task.evaluate_captions",
            evaluate_options=("beam",),
            reader="reader.CaptionReader",
        )
    },
    figures={"strip": "view.draw_strip"},
    views={"strip": "strip.js"},
    page="page.js",
    verbs={"see/caption": VerbEntry("verbs.CaptionVerb")},
)
