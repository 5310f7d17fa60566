"""Detection: Faster R-CNN (Ren et al. 2015) on any image model: objects, boxes and region features."""

from regard.families.contract import ANY_HEAD, IMAGE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "detector": ModelEntry(
            "model.Detector", "model.DetectorConfig", "Faster R-CNN", "object_detector", ("detection",)
        )
    },
    tasks={"detection": TaskEntry("recipe.DetectionRecipe", "task.DetectionTask")},
    pipelines={
        "object_detector": PipelineEntry(
            "pipeline.ObjectDetector",
            "detect",
            {ANY_HEAD: 'print(model.detect("image.png")[0].objects)'},
            input=IMAGE,
            view="view.inspect_detector",
            evaluate="task.evaluate_detector",
            evaluate_options=("output",),
            reader="reader.BoxReader",
        )
    },
    figures={"boxes": "view.draw_boxes"},
    views={"boxes": "boxes.js"},
    page="page.js",
    verbs={"see/detect": VerbEntry("verbs.Detect")},
)
