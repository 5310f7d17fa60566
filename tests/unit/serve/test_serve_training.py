"""The training routes, called as the page calls them."""

import gzip
import io
import shutil
import time
import zipfile

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from regard.data.synthetic.phrasebook import phrases
from regard.errors import RegardError
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.runs import JobRecord
from regard.serve.jobs.temp_folders import ServerTempFolder
from regard.serve.models.registry import ModelRegistry
from regard.serve.routes.training import training_router
from regard.serve.settings import ServeSettings

FORM = {"name": "mine", "recipe": "pairs-transformer", "source": "en", "target": "es", "steps": "20"}
PAIRS = list(phrases("es", part="train", count=150, seed=1, max_words=5))
TSV = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS).encode()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def jobs(tmp_path):
    made = TrainingJobs(tmp_path / "runs", limit=100_000)
    yield made
    made.close()


@pytest.fixture
def client(jobs):
    app = FastAPI()
    temp_folder = ServerTempFolder()
    app.include_router(training_router(jobs, ModelRegistry(), temp_folder, ServeSettings()))

    @app.exception_handler(RegardError)
    def say(request: Request, error: RegardError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=getattr(error, "status", 400))

    yield TestClient(app)
    temp_folder.close()


def post(client, *files, **changes):
    return client.post("/api/train", data=FORM | changes, files=[("files", file) for file in files])


def test_from_a_dropped_file_to_a_stopped_job(client):
    assert client.get("/api/train").json() == {"job": None}
    started = post(client, ("my sentences.TSV", TSV))
    assert started.status_code == 201, started.text
    assert started.json()["state"] == "preparing" and started.json()["name"] == "mine"
    assert client.get("/api/train").json()["job"]["name"] == "mine"
    for again in (post(client, ("a.tsv", TSV), name="b"), client.delete("/api/train"), client.post("/api/train/demo")):
        assert again.status_code == 409 and "mine" in again.json()["error"]
    assert client.post("/api/train/stop").json()["message"]
    until = time.monotonic() + 120
    while client.get("/api/train").json()["job"]["state"] != "stopped" and time.monotonic() < until:
        time.sleep(0.1)
    assert client.post("/api/train/resume").json()["state"] == "preparing"
    client.post("/api/train/stop")
    assert client.post("/api/train/stop").status_code == 409
    assert client.delete("/api/train").json() == {"job": None}
    assert client.get("/api/train").json() == {"job": None}


@pytest.mark.parametrize("packed", [False, True])
def test_a_pair_of_files_may_come_in_any_order(client, jobs, packed):
    english, spanish = ("\n".join(side).encode() for side in zip(*((p.source, p.target) for p in PAIRS), strict=True))
    files = [("x.es", spanish), ("x.en", english)]
    if packed:
        files = [(f"{name}.gz", gzip.compress(content)) for name, content in files]
    assert post(client, *files).status_code == 201
    upload = jobs.runs / "mine" / "upload"
    assert {file.name: file.read_bytes() for file in upload.iterdir()} == {"pairs.en": english, "pairs.es": spanish}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("../../../etc/cron.d/x", TSV, "has no known suffix"),
        ("x.tsv/../../../y", TSV, "has no known suffix"),
        ("evil.exe", TSV, "send one file"),
        ("x.tsv", b"\x89PNG\0\1\2\xff" * 20, "malformed UTF-8"),
        ("x.tsv", b"one column\n" * 30, "columns"),
    ],
)
def test_bad_files_are_answered_in_words(client, jobs, tmp_path, name, content, words):
    answer = post(client, (name, content))
    assert answer.status_code == 400 and words in answer.json()["error"]
    assert str(tmp_path) not in answer.text and not any(jobs.runs.glob("*"))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../x"}, {"name": ""}, {"source": ""}, {"target": "en"}, {"recipe": "x" * 10_000}, {"steps": "-1"},
        {"steps": "many"}, {"steps": "1.5"}, {"steps": "nan"}, {"minutes": "inf"}, {"minutes": "0"},
        {"steps": "9" * 99},
    ],
)  # fmt: skip
def test_bad_fields_are_answered_in_words(client, changes):
    answer = post(client, ("x.tsv", TSV), **changes)
    assert answer.status_code == 400 and answer.json()["error"]
    assert len(answer.text) < 1000


def test_what_is_no_form_with_one_or_two_files_is_answered_in_words(client):
    assert client.post("/api/train", json=FORM).status_code == 400
    assert client.post("/api/train", content=b"x", headers={"content-type": "multipart/form-data"}).status_code == 400
    broken = {"content-type": "multipart/form-data; boundary=b"}
    assert client.post("/api/train", content=b"--c\r\nnothing", headers=broken).status_code == 400
    assert post(client).status_code == 400
    assert post(client, *[("x.tsv", TSV)] * 3).status_code == 400
    assert client.post("/api/train", data=FORM, files={"name": ("x.tsv", TSV)}).status_code == 400


def test_too_much_is_refused_while_it_comes(client):
    answer = post(client, ("x.tsv", b"a\tb\n" * 100_000))
    assert answer.status_code == 413 and "limit of 100,000" in answer.json()["error"]


def test_the_recipes_are_listed_for_people(client):
    recipes = {recipe["name"]: recipe for recipe in client.get("/api/recipes").json()["recipes"]}
    assert recipes["pairs-transformer"]["own_data"] and not recipes["phrasebook"]["own_data"]
    assert set(recipes["phrasebook"]) == {"name", "description", "family", "title", "parameters", "own_data"}


def test_there_is_nothing_to_stop_or_resume_at_first(client):
    assert client.post("/api/train/stop").status_code == 409
    assert client.post("/api/train/resume").status_code == 404


def test_runs_are_listed_downloaded_renamed_and_deleted(client, jobs, translator_folder, tmp_path):
    shutil.copytree(translator_folder, jobs.runs / "mine")
    jobs.run_folders.write(JobRecord(name="mine", recipe="pairs-transformer", steps=20, code=0, model="mine"))
    (run,) = client.get("/api/train/runs").json()["runs"]
    assert (run["name"], run["state"], run["usable"]) == ("mine", "finished", True)
    sent = client.get("/api/train/runs/mine/download")
    assert sent.headers["content-disposition"] == 'attachment; filename="mine.zip"'
    names = zipfile.ZipFile(io.BytesIO(sent.content)).namelist()
    assert {"mine/model.safetensors", "mine/config.json", "mine/tokenizer.json", "mine/manifest.json"} <= {*names}
    assert not {"mine/job.json", "mine/train.log"} & {*names}
    assert client.post("/api/train/runs/mine/rename", json={"name": "../x"}).status_code == 400
    assert client.post("/api/train/runs/mine/rename", json={"name": "yours"}).json()["model"] == "yours"
    assert client.delete("/api/train/runs/mine").status_code == 404
    assert client.delete("/api/train/runs/%2e%2e").status_code in (404, 405)
    assert client.delete("/api/train/runs/yours").json() == {"runs": []} and not (jobs.runs / "yours").exists()


def test_runs_are_behind_the_same_guard_as_everything(served, locked):
    for method, path in (("DELETE", ""), ("POST", "/use"), ("POST", "/resume"), ("POST", "/rename")):
        elsewhere = served.client.request(
            method, f"/api/train/runs/mine{path}", headers={"origin": "https://evil.test"}
        )
        assert elsewhere.status_code == 403
        assert locked.client.request(method, f"/api/train/runs/mine{path}").status_code == 401
    assert locked.client.get("/api/train/runs/mine/download").status_code == 401


def test_a_model_to_improve_must_be_there_and_goes_with_its_recipe(client):
    missing = post(client, ("a.tsv", TSV), recipe="adapt", base="nobody")
    assert missing.status_code == 404 and "there is no model" in missing.json()["error"]
    for changes in ({"recipe": "adapt"}, {"recipe": "adapt", "base": ""}):
        refused = post(client, ("a.tsv", TSV), **changes)
        assert refused.status_code == 400 and "improves a model" in refused.json()["error"]
    assert client.get("/api/train/runs").json() == {"runs": []}
