"""Point clouds: which shape a set of points was drawn from, by a Transformer without positions."""

from regard.families.contract import ANY_HEAD, Family, ModelEntry, PipelineEntry, TaskEntry

FAMILY = Family(
    __name__,
    models={
        "point_transformer": ModelEntry(
            "model.PointTransformer", "model.PointConfig", "Point Transformer", "cloud_classifier", ("clouds",)
        ),
    },
    tasks={"clouds": TaskEntry("task.CloudsRecipe", "task.CloudTask")},
    pipelines={
        "cloud_classifier": PipelineEntry(
            "pipeline.CloudClassifier",
            "recognise",
            {ANY_HEAD: 'print(model.recognise("cloud.xyz")[0])'},
            input="cloud",
            view="view.inspect_cloud",
            evaluate="task.evaluate_clouds",
        ),
    },
    verbs={"recognise": "verbs.recognise"},
)
