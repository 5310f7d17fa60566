"""Navigation: VLN-BERT (Majumdar et al. 2020): which path through a house an instruction means."""

from regard.families.contract import ANY_HEAD, HOUSE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "vlnbert": ModelEntry(
            "vlnbert.VlnBert", "vlnbert.VlnbertConfig", "VLN-BERT", "navigator", ("paths", "path_pairs"), {"": 30_522}
        ),
        "path_lstm": ModelEntry("path_lstm.PathLstm", "path_lstm.PathLstmConfig", "Path LSTM", "navigator", ("paths",)),
    },
    tasks={
        "path_pairs": TaskEntry("recipe.PathPairsRecipe", "task.PathPairsTask"),
        "paths": TaskEntry("recipe.RankingRecipe", "task.RankingTask"),
    },
    pipelines={
        "navigator": PipelineEntry(
            "pipeline.Navigator",
            "navigate",
            {ANY_HEAD: 'print(model.navigate("turn left and stop", "builtin:houses#0", "house-1-000-000")[0].best)'},
            input=HOUSE,
            text_label="Instruction",
            view="view.inspect_navigator",
            evaluate="task.evaluate_paths",
            reader="reader.PathReader",
            examples="synthetic.examples",
        )
    },
    figures={"house": "view.draw_house"},
    views={"house": "house.js"},
    page="page.js",
    verbs={"navigate": VerbEntry("verbs.Navigate", "Rank paths through a house by an instruction")},
)
