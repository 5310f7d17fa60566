"""The ASGI application: all routes behind one request guard, with one model registry and one computing thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from regard.families.catalog import family_script, page_scripts
from regard.serve.http.access import ApiKeys
from regard.serve.http.errors import NotFoundError
from regard.serve.http.guard import Guard, Metrics
from regard.serve.http.responses import handle_errors
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.temp_folders import ServerTempFolder
from regard.serve.models.attention_cache import AttentionCache
from regard.serve.models.batching import Engine
from regard.serve.models.registry import ModelRegistry
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.attention import attention_router
from regard.serve.routes.features import features_router
from regard.serve.routes.libretranslate import libre_router
from regard.serve.routes.models import models_router
from regard.serve.routes.openai import openai_router
from regard.serve.routes.reference import reference_router
from regard.serve.routes.training import training_router
from regard.serve.routes.translate import translate_router
from regard.serve.routes.workbench import workbench_router
from regard.serve.settings import ServeSettings

LENS = Path(__file__).with_name("lens")
FRESH = {"cache-control": "no-cache"}  # browsers revalidate, so that an upgrade never mixes old modules with new ones
SHARED = Path(str(resources.files("regard.look"))) / "web"  # modules that the lens shares with offline pages


def create_app(registry: ModelRegistry, jobs: TrainingJobs, settings: ServeSettings) -> FastAPI:
    """Build the server's ASGI application."""
    metrics = Metrics()
    engine = Engine(registry, queue_limit=settings.queue, batch_size=settings.batch, on_batch=metrics.record_batch)
    service, temp_folder = TranslationService(registry, engine, settings), ServerTempFolder()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()
        jobs.close()
        service.memory.close()
        temp_folder.close()

    app = FastAPI(title="Regard", version=version("regard"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.jobs, app.state.engine = jobs, engine
    app.add_middleware(Guard, settings=settings, metrics=metrics)
    handle_errors(app)
    app.include_router(libre_router(service, ApiKeys(settings.api_keys), jobs.runs, temp_folder))
    app.include_router(openai_router(service))
    app.include_router(models_router(service))
    app.include_router(translate_router(service, temp_folder))
    app.include_router(attention_router(service, AttentionCache()))
    app.include_router(features_router(service))
    app.include_router(workbench_router())
    app.include_router(training_router(jobs, registry, temp_folder, settings))

    app.include_router(reference_router(app))

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    def prometheus() -> Response:
        metrics.waiting.set(engine.waiting)
        metrics.loaded.set(sum(registry.is_loaded(info.id) for info in registry.infos()))
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        scripts = "\n".join(f'<script type="module" src="/lens/{address}"></script>' for address in page_scripts())
        whole = (LENS / "index.html").read_text(encoding="utf-8").replace("<!-- families -->", scripts)
        return HTMLResponse(whole, headers=FRESH)

    @app.get("/lens/family/{name}/{file}", include_in_schema=False)
    def script(name: str, file: str) -> Response:
        try:
            return Response(family_script(name, file).read_bytes(), media_type="text/javascript", headers=FRESH)
        except KeyError:
            raise NotFoundError(f"there is no script {name}/{file}") from None

    app.mount("/lens/look", FreshFiles(directory=SHARED), name="shared")
    app.mount("/lens", FreshFiles(directory=LENS), name="lens")
    return app


class FreshFiles(StaticFiles):
    """Static files that browsers revalidate each time."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(FRESH)
        return response
