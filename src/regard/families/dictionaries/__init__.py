"""Sparse autoencoders: features of the activations of any other model."""

from regard.families.contract import ANY_HEAD, FEATURES, INSIDE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "sparse_autoencoder": ModelEntry(
            "model.SparseAutoencoder",
            "model.SparseAutoencoderConfig",
            "Sparse autoencoder",
            "feature_dictionary",
            ("dictionary",),
        ),
    },
    tasks={
        "dictionary": TaskEntry("recipe.DictionaryRecipe", "task.DictionaryTask"),
    },
    pipelines={
        "feature_dictionary": PipelineEntry(
            "pipeline.FeatureDictionary",
            "name_features",
            {ANY_HEAD: 'units, features = model.active("we are eating bread")'},
            input=FEATURES,
            evaluate="task.evaluate_dictionary",
        ),
    },
    page="page.js",
    verbs={"features": VerbEntry("verbs.Features", "Features that a sparse autoencoder found in a model", INSIDE)},
)
