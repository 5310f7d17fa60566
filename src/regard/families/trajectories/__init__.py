"""Trajectories: AgentFormer (Yuan et al. 2021): where walking agents will be, as joint samples."""

from regard.families.contract import ANY_HEAD, SCENE, Family, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

FAMILY = Family(
    __name__,
    models={
        "agentformer": ModelEntry(
            "model.AgentFormer",
            "model.AgentFormerConfig",
            "AgentFormer",
            "forecaster",
            ("forecasting", "forecast_sampler"),
        ),
    },
    tasks={
        "forecasting": TaskEntry("recipe.ForecastRecipe", "task.ForecastTask"),
        "forecast_sampler": TaskEntry("recipe.SamplerRecipe", "task.SamplerTask"),
    },
    pipelines={
        "forecaster": PipelineEntry(
            "pipeline.Forecaster",
            "forecast",
            {ANY_HEAD: 'print(model.forecast("builtin:walkers#0", samples=20)[0].likeliest)'},
            input=SCENE,
            view="view.inspect_forecaster",
            evaluate="task.evaluate_forecasts",
            evaluate_options=("samples",),
            reader="reader.TrackReader",
            examples="data.examples",
        ),
    },
    figures={"agents": "view.draw_scene"},
    views={"agents": "agents.js"},
    page="page.js",
    verbs={"forecast": VerbEntry("verbs.ForecastVerb", "Forecast where people and vehicles will be")},
)
