"""The ASGI application: all routes behind one request guard, with one model registry and one computing thread; and the
reference of its APIs as one HTML page without external resources.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from regard.serve.http.guard import ApiKeys, Guard, Metrics
from regard.serve.http.responses import handle_errors
from regard.serve.jobs.documents import DocumentJobs
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
from regard.serve.routes.page import FRESH, LENS, SHARED, page_router
from regard.serve.routes.training import training_router
from regard.serve.routes.translate import translate_router
from regard.serve.routes.workbench import workbench_router
from regard.serve.settings import ServeSettings

ENGINE_WAIT = 2.0  # seconds for the running batch of requests that nobody waits for any more


def create_app(registry: ModelRegistry, jobs: TrainingJobs, settings: ServeSettings) -> FastAPI:
    """Build the server's ASGI application."""
    metrics = Metrics()
    engine = Engine(registry, queue_limit=settings.queue, batch_size=settings.batch, on_batch=metrics.record_batch)
    service, temp_folder = TranslationService(registry, engine, settings), ServerTempFolder()
    documents, keys = DocumentJobs(service, temp_folder, settings), ApiKeys(settings.api_keys, settings.per_key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await documents.close()
        engine.close(ENGINE_WAIT)
        jobs.close()
        service.memory.close()
        temp_folder.close()

    app = FastAPI(title="Regard", version=version("regard"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.jobs, app.state.engine = jobs, engine
    app.add_middleware(Guard, settings=settings, keys=keys, metrics=metrics)
    handle_errors(app)
    app.include_router(libre_router(service, keys, jobs.runs, documents))
    app.include_router(openai_router(service))
    app.include_router(models_router(service))
    app.include_router(translate_router(service, documents))
    app.include_router(attention_router(service, AttentionCache()))
    app.include_router(features_router(service))
    app.include_router(workbench_router())
    app.include_router(training_router(jobs, registry, temp_folder, settings))

    app.include_router(reference_router(app))
    app.include_router(page_router())

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    def prometheus() -> Response:
        metrics.waiting.set(engine.waiting)
        metrics.loaded.set(sum(registry.is_loaded(info.id) for info in registry.infos()))
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    app.mount("/lens/look", FreshFiles(directory=SHARED), name="shared")
    app.mount("/lens", FreshFiles(directory=LENS), name="lens")
    return app


class FreshFiles(StaticFiles):
    """Static files that browsers revalidate each time."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(FRESH)
        return response


METHODS = ("get", "post", "delete")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Regard: APIs</title>
<link rel="icon" href="lens/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="lens/style.css">
</head>
<body>
<main>
<h1>Regard {version}: APIs</h1>
<p>The whole as an OpenAPI document: <a href="spec">/spec</a>. The page: <a href="./">/</a>.</p>
{sections}
</main>
</body>
</html>
"""
EXAMPLES = {
    "/translate": '{"q": "we are eating bread", "source": "auto", "target": "es"}',
    "/detect": '{"q": ["¿Dónde está la biblioteca?", "Guten Tag"]}',
    "/v1/chat/completions": '{"model": "demo:es", "messages": [{"role": "user", "content": "we are eating bread"}]}',
    "/v1/completions": '{"model": "demo:es", "prompt": "we are eating bread"}',
}


def reference_router(app: FastAPI) -> APIRouter:
    router = APIRouter()

    @router.get("/spec")
    def spec() -> dict[str, Any]:
        """This OpenAPI document, at the address that LibreTranslate uses."""
        return app.openapi()

    @router.get("/docs", include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi(), str(request.base_url).rstrip("/")))

    return router


def reference_page(document: Mapping[str, Any], address: str) -> str:
    """The HTML page; `address` is the server's address in its examples."""
    tagged: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                tag = next(iter(operation.get("tags", [])), "Server")
                tagged.setdefault(tag, []).append(_operation(document, path, method, operation, address))
    sections = "\n".join(
        f'<section class="card">\n<h2>{escape(tag)}</h2>\n{"".join(entries)}</section>'
        for tag, entries in tagged.items()
    )
    return PAGE.format(version=escape(document["info"]["version"]), sections=sections)


def _operation(document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any], address: str) -> str:
    description = escape(operation.get("description", ""))
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{'required' if needed else ''}</td></tr>\n"
        for name, kind, needed in _fields(document, operation)
    )
    example = ""
    if path in EXAMPLES:
        command = f"curl {address}{path} -H 'Content-Type: application/json' -d '{EXAMPLES[path]}'"
        example = f"<pre><code>{escape(command, quote=False)}</code></pre>\n"
    table = f"<table>\n{rows}</table>\n" if rows else ""
    return f"<h3><code>{method.upper()} {escape(path)}</code></h3>\n<p>{description}</p>\n{table}{example}"


def _fields(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """The name and type of every request field, and whether it is required."""
    for parameter in operation.get("parameters", []):
        yield parameter["name"], _kind(document, parameter.get("schema", {})), parameter.get("required", False)
    kinds = operation.get("requestBody", {}).get("content", {}).values()
    schema = next((_resolved(document, kind["schema"]) for kind in kinds), {})
    for name, field in schema.get("properties", {}).items():
        yield name, _kind(document, field), name in schema.get("required", [])


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    schema = _resolved(document, schema)
    choices = [_kind(document, each) for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    if choices:
        return " or ".join(dict.fromkeys(kind for kind in choices if kind != "null"))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    return "file" if schema.get("format") == "binary" else str(schema.get("type", "anything"))


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a `$ref` points to, or the schema itself."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema
