"""Protein structures: an Evoformer (Jumper et al. 2021) for contacts and backbones; experimental."""

from regard.families.contract import ANY_HEAD, PROTEIN, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "evoformer": ModelEntry(
            "model.Evoformer", "model.EvoformerConfig", "Evoformer", "structure_predictor", ("folding",)
        ),
    },
    tasks={
        "folding": TaskEntry("recipe.FoldingRecipe", "task.FoldingTask"),
    },
    pipelines={
        "structure_predictor": PipelineEntry(
            "pipeline.StructurePredictor",
            "fold",
            {ANY_HEAD: 'print(model.fold("MKTAYIAKQRQISFVKSHFSRQ")[0].mean_confidence)'},
            input=PROTEIN,
            view="view.inspect_structure",
            evaluate="task.evaluate_structures",
            reader="reader.ChainReader",
            examples="structures.examples",
        ),
    },
    figures={"structure": "view.draw_structure"},
    views={"structure": "structure.js"},
    page="page.js",
    verbs={"fold": VerbEntry("verbs.Fold", "Predict the backbones of proteins")},
)
