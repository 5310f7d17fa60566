"""Protein pairs: does one protein bind another, on seen and unseen proteins."""

from regard.families.contract import ANY_HEAD, PROTEIN, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "interactor": ModelEntry(
            "model.Interactor", "model.InteractorConfig", "Protein pairs", "interactions", ("interactions",)
        ),
    },
    tasks={
        "interactions": TaskEntry("recipe.InteractionsRecipe", "task.InteractionTask"),
    },
    pipelines={
        "interactions": PipelineEntry(
            "pipeline.InteractionPredictor",
            "interact",
            {ANY_HEAD: 'print(model.interact("MSTAVLENPGLGRKLSDF", "MKLVNIGRALAEK")[0].probability)'},
            input=PROTEIN,
            view="view.inspect_interaction",
            evaluate="task.evaluate_interactions",
            reader="view.InteractionReader",
        ),
    },
    page="page.js",
    verbs={"interact": VerbEntry("verbs.Interact", "Tell whether two proteins bind")},
)
