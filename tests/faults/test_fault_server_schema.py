"""Row 20: every request that the OpenAPI document allows, and many invalid ones, get a response that is not a 500.

The real clients `openai`, `libretranslatepy` and `deep-translator` are in tests/unit/serve.
"""

import os
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from regard.serve.app import create_app
from regard.serve.http.responses import ConflictError
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.models.registry import ModelRegistry
from regard.serve.settings import ServeSettings

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "5"))  # requests to each operation
usual = settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
VALID: dict[str, dict[str, str]] = {  # values that random data would hardly ever have
    "/translate": {"source": "en", "target": "es"},
    "/suggest": {"source": "en", "target": "es"},
    "/translate_file": {"source": "en", "target": "es"},
    "/v1/completions": {"model": ":es"},
    "/v1/chat/completions": {"model": ":es"},
    "/api/translate": {"model": "", "to": "es"},
    "/api/translate/stream": {"model": "", "to": "es"},
    "/api/look": {"model": "", "to": "es"},
    "/api/look/stream": {"model": "", "to": "es"},
    "/api/look/export": {"model": "", "to": "es"},
}
document = create_app(ModelRegistry(), TrainingJobs(Path("nowhere")), ServeSettings()).openapi()
schema = schemathesis.openapi.from_dict(document)


@pytest.fixture
def address(served, monkeypatch) -> str:
    """A server without training."""

    def refuse(*_: object, **__: object) -> None:
        raise ConflictError("nothing is trained in this test")

    for name in ("start", "start_demo", "resume"):
        monkeypatch.setattr(served.app.state.jobs, name, refuse)
    return served.url


def check(answer: schemathesis.Response) -> None:
    assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers), answer.text


@schema.parametrize()
@usual
def test_no_request_is_answered_with_a_server_error(case, address):
    check(case.call(base_url=address, timeout=60))


@schema.include(path=list(VALID)).parametrize()
@usual
def test_nor_is_one_that_gets_as_far_as_a_model(case, address, translator_folder):
    if isinstance(case.body, dict):
        case.body |= VALID[case.path]
        if "model" in case.body:
            case.body["model"] = f"{translator_folder.name}{case.body['model']}"
    check(case.call(base_url=address, timeout=60))
