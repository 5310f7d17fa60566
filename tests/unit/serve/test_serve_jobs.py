"""Training jobs as real processes: they start, stop, resume, report failures, and are found after a crash."""

import gzip
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import sacrebleu

import regard
from forked import fork_jobs
from regard.checkpoints import load_model, verify
from regard.data.synthetic.phrasebook import phrases
from regard.errors import CheckpointError, DataError, RegardError, UsageError
from regard.serve.http.responses import ConflictError, NotFoundError, TooLargeError
from regard.serve.jobs.recipes import offers, settings_for
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.runs import Job, JobRecord, read_job, stream_zip
from regard.serve.models.registry import ModelRegistry
from regard.training.loop import train
from regard.training.recipe.load import load_recipe

PATIENCE = 120
BOMB = '<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><tmx><body>&b;</body></tmx>'
TMX = '<tmx version="1.4"><body>{}</body></tmx>'
UNIT = '<tu><tuv xml:lang="{}"><seg>a {}</seg></tuv><tuv xml:lang="fr"><seg>b</seg></tuv></tu>'


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Jobs with one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fork_jobs(monkeypatch)  # a server in another process starts its job as a program, in the first test


@pytest.fixture
def tsv(tmp_path):
    """A corpus as a user might upload it."""
    file = tmp_path / "sent.tsv"
    pairs = phrases("es", part="train", count=150, seed=1, max_words=5)
    file.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    return file


@pytest.fixture
def jobs(tmp_path):
    made = TrainingJobs(tmp_path / "runs")
    yield made
    made.close()


def begin(jobs, *files, **changes) -> Job:
    order = {"name": "mine", "recipe": "pairs-transformer", "source": "en", "target": "es", "steps": 30, **changes}
    return jobs.start(files, **order)


def wait_for(jobs, reached) -> Job:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        job = jobs.current()
        if reached(job):
            return job
        time.sleep(0.05)
    raise AssertionError(f"still {job}")


def ended(job) -> bool:
    return job.state not in ("preparing", "running")


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    paths = [folder / name.replace("_", ".") for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return paths


def test_a_job_outlives_its_server_is_stopped_by_the_next_and_goes_on_to_the_end(tmp_path, tsv):
    runs = tmp_path / "runs"
    server = (
        "import os, pathlib, sys; from regard.serve.jobs.runner import TrainingJobs\n"
        "TrainingJobs(pathlib.Path(sys.argv[1])).start([pathlib.Path(sys.argv[2])], name='mine',"
        " recipe='pairs-transformer', source='en', target='es', steps=40)\n"
        "os._exit(9)"
    )
    crashed = subprocess.run([sys.executable, "-c", server, str(runs), str(tsv)], timeout=PATIENCE)
    assert crashed.returncode == 9

    told = []

    def tell(folder, name):
        told.append(folder)
        return "mine-2"

    jobs = TrainingJobs(runs, on_finished=tell)
    assert jobs.current().state in ("preparing", "running")
    job = wait_for(jobs, lambda job: job.step)
    assert job.state == "running" and 0 < job.step < job.steps == 40
    assert job.seconds > 0 and job.seconds_left > 0 and job.model is None
    assert "sentence pairs en → es" in job.summary
    with pytest.raises(ConflictError, match="mine is being trained"):
        begin(jobs, tsv, name="other")
    with pytest.raises(ConflictError):
        jobs.clear_current()
    with pytest.raises(ConflictError):
        jobs.resume()
    jobs.stop()
    stopped = wait_for(jobs, ended)
    assert stopped.state == "stopped" and not jobs.run_folders.models()
    with pytest.raises(ConflictError, match="no training is running"):
        jobs.stop()

    jobs = TrainingJobs(runs, on_finished=tell)
    assert jobs.current() == stopped
    assert jobs.resume().state == "preparing"
    job = wait_for(jobs, ended)
    assert (job.state, job.step, job.model) == ("finished", 40, "mine-2"), job.message
    assert job.loss[0][0] == 1 and job.loss[-1][0] == 40  # the log before the stop is kept
    assert job.loss[-1][1] < job.loss[0][1]
    assert len(job.samples) >= 5 and {sample.step for sample in job.samples} == {40}
    assert told == list(jobs.run_folders.models().values()) == [runs / "mine"]
    verify(runs / "mine")
    for name in ("recipe.toml", "README.md", "metrics.jsonl"):
        assert str(tmp_path) not in (runs / "mine" / name).read_text(encoding="utf-8")
    with pytest.raises(ConflictError, match="finished"):
        jobs.resume()
    with pytest.raises(ConflictError, match="already a training called mine"):
        begin(jobs, tsv)
    jobs.clear_current()
    assert jobs.current() is None and jobs.run_folders.models()


def test_a_run_that_fails_says_why_in_one_line_and_its_name_is_free_again(tmp_path, jobs):
    (file,) = write(tmp_path / "sent", pairs_tsv="the same\tlo mismo\n" * 30)
    assert begin(jobs, file).state == "preparing"
    job = wait_for(jobs, ended)
    assert job.state == "failed" and "pair" in job.message
    assert "Traceback" not in job.message and "/" not in job.message and "regard:" not in job.message
    assert TrainingJobs(jobs.runs).current() == job
    (file,) = write(tmp_path / "sent", pairs_tsv="the same\tlo mismo\n" * 30)
    begin(jobs, file)


def test_a_server_that_is_shut_down_stops_its_job(jobs, tsv):
    begin(jobs, tsv)
    jobs.close()
    assert wait_for(jobs, ended).state == "stopped"
    assert TrainingJobs(jobs.runs).current().state == "stopped"


def test_a_job_whose_process_is_gone_is_stopped(jobs, tsv):
    begin(jobs, tsv)
    jobs.close()
    wait_for(jobs, ended)
    record = jobs.run_folders.current
    jobs.run_folders.write(record.replace(code=None, pid=os.getpid()))  # the pid now belongs to another process
    again = TrainingJobs(jobs.runs)
    assert wait_for(again, ended).state == "stopped"


def test_what_a_stopped_run_has_learnt_is_used_renamed_sent_and_deleted(tmp_path, tsv):
    registry = ModelRegistry()
    jobs = TrainingJobs(tmp_path / "runs", on_finished=registry.add, on_removed=registry.remove)
    begin(jobs, tsv, steps=100_000)
    wait_for(jobs, lambda job: job.step)
    for refused in (jobs.use, jobs.delete, jobs.model, lambda name: jobs.rename(name, "other")):
        with pytest.raises(ConflictError, match="mine is being trained; stop it first"):
            refused("mine")
    jobs.stop()
    wait_for(jobs, ended)
    jobs.clear_current()
    (run,) = jobs.all()
    assert (run.name, run.state, run.usable, run.model) == ("mine", "stopped", True, None) and run.step > 0

    assert jobs.use("mine").model == "mine"
    learnt = registry.translator("mine").translate("we eat bread")
    verify(registry.find("mine").folder)
    assert TrainingJobs(jobs.runs).run_folders.models() == {"mine": jobs.runs / "mine" / "model"}  # after a restart
    assert jobs.rename("mine", "yours").model == "yours" and [each.id for each in registry.infos()] == ["yours"]
    assert registry.translator("yours").translate("we eat bread") == learnt

    archive = zipfile.ZipFile(io.BytesIO(b"".join(stream_zip(jobs.model("yours"), "yours"))))
    archive.extractall(tmp_path / "sent")
    assert regard.load(tmp_path / "sent" / "yours").translate("we eat bread") == learnt

    assert jobs.resume("yours").name == "yours"  # a model in use stays in use during the resumed run
    assert jobs.current().model == "yours" and registry.find("yours")
    jobs.close()
    wait_for(jobs, ended)
    jobs.delete("yours")
    assert jobs.all() == [] and jobs.current() is None and not registry.infos() and not any(jobs.runs.glob("*"))


def test_only_runs_are_renamed_and_deleted(tmp_path, jobs):
    for name in ("demo", "mine", "other"):
        record = JobRecord(name=name, recipe="pairs-transformer", steps=1, code=-15)
        jobs.run_folders.write(record)
    write(tmp_path / "outside", job_json=record.model_dump_json())
    for name in ("../outside", "outside", "..", "", ".current", "MINE", "mine/../other"):
        for order in (jobs.delete, jobs.use, jobs.model, lambda name: jobs.rename(name, "new")):
            with pytest.raises(NotFoundError):
                order(name)
    for name in ("../outside", "", "demo", "Mine", "a/b"):
        with pytest.raises(UsageError, match="cannot be used"):
            jobs.rename("mine", name)
    with pytest.raises(ConflictError, match="already a training called other"):
        jobs.rename("mine", "other")
    with pytest.raises(ConflictError, match="saved no checkpoint yet"):
        jobs.use("mine")
    assert (tmp_path / "outside").exists() and {run.name for run in jobs.all()} == {"demo", "mine", "other"}


def test_a_model_that_was_finished_without_a_server_is_found(tmp_path):
    record = JobRecord(name="mine", recipe="pairs-transformer", steps=1, pid=0)
    write(tmp_path / "mine", job_json=record.model_dump_json(), manifest_json="{}")
    write(tmp_path, _current="mine")
    job = wait_for(TrainingJobs(tmp_path), ended)
    assert (job.state, job.model) == ("finished", "mine")
    write(tmp_path / "mine", job_json=record.model_dump_json())

    def damaged(folder, name):
        raise CheckpointError("damaged")

    job = wait_for(TrainingJobs(tmp_path, on_finished=damaged), ended)
    assert (job.state, job.model) == ("finished", None)


def test_the_demo_is_trained_into_its_own_folder_once(jobs):
    job = jobs.start_demo()
    assert (job.name, job.recipe, job.state) == ("demo", "phrasebook", "preparing")
    with pytest.raises(ConflictError):
        jobs.start_demo()
    jobs.close()
    assert TrainingJobs(jobs.runs).current().name == "demo"
    (jobs.runs / "demo" / "manifest.json").write_text("{}")
    with pytest.raises(ConflictError, match="already"):
        jobs.start_demo()


def test_nothing_to_stop_resume_or_show(jobs):
    assert jobs.current() is None and jobs.run_folders.models() == {}
    with pytest.raises(ConflictError):
        jobs.stop()
    with pytest.raises(NotFoundError):
        jobs.resume()
    jobs.clear_current()


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "/etc", "A", "x" * 42, "-x", ".x", "a b", "é", "x\n", "demo", "x\0"]
)
def test_a_name_is_never_a_path(jobs, tsv, name):
    with pytest.raises(UsageError, match="cannot be used"):
        begin(jobs, tsv, name=name)
    assert not jobs.runs.exists() and tsv.exists()


@pytest.mark.parametrize("language", ["", "e", "../en", "en/..", "english language", "en\n", "1"])
def test_a_language_is_never_a_path(jobs, tsv, language):
    with pytest.raises(UsageError, match="language"):
        begin(jobs, tsv, source=language)


@pytest.mark.parametrize("recipe", ["", "nope", "../../recipe.toml", "/etc/passwd"])
def test_only_shipped_recipes_are_trained(jobs, tsv, recipe):
    with pytest.raises(UsageError, match="no shipped recipe"):
        begin(jobs, tsv, recipe=recipe)


def test_recipes_with_data_take_no_files_and_those_without_need_them(jobs, tsv):
    for recipe in ("phrasebook", "tatoeba-en-es"):
        with pytest.raises(UsageError, match="does not take files"):
            begin(jobs, tsv, recipe=recipe)
    with pytest.raises(UsageError, match="does not take files"):
        begin(jobs, recipe="tatoeba-en-es")
    with pytest.raises(UsageError, match="received no file"):
        begin(jobs)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes_docx": "x"}, "send one file"),
        ({"notes": "x"}, "has no known suffix"),
        ({"pairs_gz": "x"}, "send one file"),
        ({"a_txt": "x\n" * 30, "b_txt": "x\n" * 30}, "end in their languages"),
        ({"a_en": "x\n" * 30, "a_fr": "x\n" * 30}, "end in their languages"),
        ({"a_en": "x\n" * 30, "a_es": "x\n" * 29}, "misaligned files: pairs.en has 30 lines, pairs.es has 29"),
        ({"pairs_tsv": b"\x7fELF\0\0\xff\xfe" * 40}, "malformed UTF-8 or NUL"),
        ({"pairs_tsv": ""}, "no sentence pairs"),
        ({"pairs_tsv": "a\tb\n" * 3}, "the files have 3 sentence pairs"),
        ({"pairs_tsv": "a\tb\n" * 30 + "alone\n"}, "line 31: expected 2 columns"),
        ({"pairs_csv": 'a,"b\n'}, "CSV"),
        ({"pairs_jsonl": '{"de": "x"}\n'}, "no language 'en'"),
        ({"pairs_tmx": BOMB}, "entities"),
        ({"pairs_tmx": "<tmx><body>"}, "not well-formed XML"),
        ({"pairs_tmx": TMX.format(UNIT.format("de", 1))}, "the languages are: de, fr"),
        ({"pairs_tsv_gz": b"not gzip"}, "gzip"),
        ({"pairs_tsv_gz": gzip.compress(b"a\tb\n" * 30)[:-9]}, "gzip"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_words_and_leave_nothing_behind(tmp_path, jobs, files, words):
    with pytest.raises(RegardError, match=words) as caught:
        begin(jobs, *write(tmp_path / "sent", **files))
    assert isinstance(caught.value, (DataError, UsageError))
    assert str(tmp_path) not in str(caught.value)
    assert not any(jobs.runs.glob("*")) and jobs.current() is None


def test_a_small_gz_does_not_fill_the_disk(tmp_path):
    jobs = TrainingJobs(tmp_path / "runs", limit=1000)
    with pytest.raises(TooLargeError, match="1,000 bytes"):
        begin(jobs, *write(tmp_path / "sent", pairs_tsv_gz=gzip.compress(b"a\tb\n" * 10**6)))


def test_the_same_language_twice_is_refused(jobs, tsv):
    with pytest.raises(UsageError, match="not its own target"):
        begin(jobs, tsv, target="en")


@pytest.mark.parametrize("pairs", [20, 2_000, 20_000, 90_000, 10**6])
@pytest.mark.parametrize("steps", [None, 1, 20, 100_000])
def test_settings_fit_any_corpus(pairs, steps):
    sets = settings_for("pairs-transformer", pairs=pairs, steps=steps)
    recipe = load_recipe("pairs-transformer", ["data.train=x", "data.source=en", "data.target=es", *sets])
    training = recipe.training
    assert training.steps == steps or (steps is None and training.steps >= 1500)
    assert training.warmup < training.steps
    assert 0.01 <= recipe.data.split <= 0.1 and pairs * recipe.data.split >= 2
    assert training.log_every <= 5 and 10 <= training.validate_every == training.checkpoint_every <= 500


def test_the_offered_recipes_run_anywhere():
    found = {offer.name: offer for offer in offers()}
    assert found["pairs-transformer"].own_data and found["pairs-transformer"].parameters is None
    assert not found["phrasebook-rnn"].own_data and found["phrasebook-rnn"].parameters > 10**5
    assert found["phrasebook-rnn"].family == "seq2seq"
    assert all("phrasebook" in name or offer.own_data for name, offer in found.items())
    assert all(offer.description for offer in found.values())


def test_a_chosen_model_is_improved_by_the_recipe_adapt(jobs, tsv, translator_folder, monkeypatch):
    launched = []
    monkeypatch.setattr(TrainingJobs, "_launch", lambda self, record: launched.append(record))
    monkeypatch.setattr(TrainingJobs, "_now", lambda self: None)
    begin(jobs, tsv, recipe="adapt", base=translator_folder, base_name="run", steps=2)
    (record,) = launched
    monkeypatch.chdir(jobs.runs / "mine")  # where its process would run
    recipe = load_recipe(record.recipe, [*record.sets, "training.device=cpu"])
    train(recipe, Path(), resume=True)
    assert load_model(Path()).config == load_model(translator_folder).config
    job = read_job(record.replace(code=0), Path(), active=False)
    assert "before" in job.message and "now, on your held-out pairs" in job.message
    jobs.run_folders.write(record)
    with pytest.raises(ConflictError, match="no finished improvement"):
        jobs.compare("mine")
    jobs.run_folders.write(record.replace(code=0))
    rows = [("we eat bread", "comemos pan", "es"), ("we eat bread", "comemos pão", "pt")]
    named = [{"q": q, "s": s, "source": "en", "target": target} for q, s, target in rows]
    (jobs.runs / "suggestions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in named), "utf-8")
    held_out, corrections = jobs.compare("mine").sets
    assert (held_out.kind, corrections.kind, corrections.sentences) == ("held_out", "corrections", 1)
    pairs = [json.loads(line)[:2] for line in Path("data/valid.jsonl").read_text("utf-8").splitlines()]
    assert held_out.sentences == len(pairs) > 5
    for folder, scores in ((translator_folder, held_out.old), (Path(), held_out.new)):
        answers = [each.text for each in regard.load(folder).translate([source for source, _ in pairs], to="es")]
        score = sacrebleu.corpus_chrf(answers, [[target for _, target in pairs]]).score
        assert scores.chrf == pytest.approx(score)
    assert all(each.old != each.new for each in held_out.differences)
    assert jobs.compare("mine").sets[0] == held_out  # kept


def test_an_improved_model_takes_the_place_of_the_old_one(jobs, folders):
    registry = ModelRegistry(folders)
    first, second, third = (info.id for info in registry.infos())
    (jobs.runs / "mine").mkdir(parents=True)
    jobs.run_folders.write(JobRecord(name="mine", recipe="adapt", steps=2, code=0, base=first, model=third))
    assert jobs.replacements() == []
    record = jobs.replace("mine", True)
    assert jobs.replacements() == [record]
    registry.put_before(record.base, record.model)  # it is so already: no model changes its place
    assert [info.id for info in registry.infos()] == [first, second, third]
    registry.put_before(record.model, record.base)
    assert [info.id for info in registry.infos()] == [third, first, second]
    registry.put_before(record.base, record.model)  # it was better before
    registry.put_before("gone", first)
    assert [info.id for info in registry.infos()] == [first, third, second]
    assert not jobs.replace("mine", False).replaces and jobs.replacements() == []
