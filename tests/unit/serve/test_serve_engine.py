"""The request queue: batches across clients, fairness, limits, and models that are loaded and unloaded."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from regard.errors import ConfigError, DataError, UsageError
from regard.search.settings import SearchSettings
from regard.serve.http.responses import BusyError, NotFoundError
from regard.serve.models.batching import AskedSettings, Engine
from regard.serve.models.registry import ModelLoadError, ModelRegistry


class Answer(str):
    unknown = ()


class Parrot:
    """A stand-in for a translator: records its batches, and answers each sentence with itself and the target."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.going = threading.Event()
        self.going.set()
        self.settings = SearchSettings()

    def translate(self, texts, *, to="", glossary=None, settings):
        self.going.wait(30)
        several = [texts] if isinstance(texts, str) else list(texts)
        self.batches.append(several)
        if any("bad" in text for text in several):
            raise DataError("a bad sentence")
        answers = [Answer(f"{text}>{to}{settings.beam if settings.beam > 1 else ''}") for text in several]
        return answers[0] if isinstance(texts, str) else answers


class OneModel:
    """A registry with one model."""

    def __init__(self, translator: Parrot) -> None:
        self.held = translator

    def translator(self, name: str) -> Parrot:
        if name != "m":
            raise NotFoundError(name)
        return self.held


def with_engine(work, **limits):
    """Run `work(engine, parrot)` in an event loop with an engine that is closed afterwards."""
    parrot = Parrot()
    engine = Engine(OneModel(parrot), **limits)  # type: ignore[arg-type]

    async def main():
        engine.start()
        try:
            return await work(engine, parrot)
        finally:
            parrot.going.set()
            await asyncio.to_thread(engine.close)

    return asyncio.run(main())


def wider(number: int) -> AskedSettings:
    """Settings that no other number has, so that requests share no batch."""
    return AskedSettings(beam=number + 2)


async def waiting(engine: Engine, count: int) -> None:
    while engine.waiting < count:
        await asyncio.sleep(0.001)


def test_requests_that_wait_together_are_one_batch():
    async def work(engine, parrot):
        parrot.going.clear()
        first = asyncio.create_task(engine.translate("m", ["a"], to="es"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(engine.translate("m", [f"b{i}", f"c{i}"], to="es")) for i in range(5)]
        different = asyncio.create_task(engine.translate("m", ["d"], to="pt"))
        await waiting(engine, 6)
        parrot.going.set()
        answers = [await first, await different, *[await each for each in others]]
        assert answers == [["a>es"], ["d>pt"], *[[f"b{i}>es", f"c{i}>es"] for i in range(5)]]
        assert sorted(map(len, parrot.batches)) == [1, 1, 10]

    with_engine(work)


def test_a_short_text_does_not_wait_for_all_of_a_long_one():
    async def work(engine, parrot):
        parrot.going.clear()
        long = asyncio.create_task(engine.translate("m", [f"long{i}" for i in range(100)], to="es"))
        await asyncio.sleep(0.05)
        short = asyncio.create_task(engine.translate("m", ["short"], to="es"))
        await waiting(engine, 1)
        parrot.going.set()
        assert await short == ["short>es"]
        assert len(await long) == 100
        place = next(number for number, batch in enumerate(parrot.batches) if "short" in batch)
        assert place <= 2 and all(len(batch) <= 8 for batch in parrot.batches)
        assert [s for batch in parrot.batches for s in batch if s != "short"] == [f"long{i}" for i in range(100)]

    with_engine(work, batch_size=8)


def test_a_short_text_waits_for_one_batch_of_one_document():
    async def work(engine, parrot):
        parrot.going.clear()
        documents = [
            asyncio.create_task(engine.translate("m", [f"{i}-{n}" for n in range(30)], asked=wider(i), by_turns=True))
            for i in range(6)
        ]
        await waiting(engine, 5)
        short = [asyncio.create_task(engine.translate("m", [f"short{i}"], asked=wider(10 + i))) for i in range(3)]
        await waiting(engine, 8)
        parrot.going.set()
        await asyncio.gather(*short, *documents)
        places = [number for number, batch in enumerate(parrot.batches) if "short" in batch[0]]
        assert places[0] <= 2 and places[2] - places[0] <= 4  # and documents go on between them
        assert places[1] > places[0] + 1 and places[2] > places[1] + 1

    with_engine(work, batch_size=8)


def test_the_line_is_bounded_and_tells_when_to_come_back():
    async def work(engine, parrot):
        parrot.going.clear()
        tasks = [asyncio.create_task(engine.translate("m", [str(i)], asked=wider(i))) for i in range(8)]
        await asyncio.sleep(0.05)
        refused = [task for task in tasks if task.done()]
        assert len(refused) in (3, 4)  # four wait; one more may be running
        for task in refused:
            with pytest.raises(BusyError) as error:
                task.result()
            assert error.value.retry_after >= 1
        parrot.going.set()
        await asyncio.gather(*(task for task in tasks if task not in refused))

    with_engine(work, queue_limit=4)


def test_who_leaves_is_not_computed_for():
    async def work(engine, parrot):
        parrot.going.clear()
        first = asyncio.create_task(engine.translate("m", ["a"]))
        await asyncio.sleep(0.05)
        left = [asyncio.create_task(engine.translate("m", [f"gone{i}"], asked=wider(i))) for i in range(20)]
        await waiting(engine, 20)
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
        last = asyncio.create_task(engine.translate("m", ["last"]))
        parrot.going.set()
        assert (await first, await last) == (["a>"], ["last>"])
        assert not any("gone" in sentence for batch in parrot.batches for sentence in batch)

    with_engine(work)


def test_settings_that_no_search_has_are_refused_alone():
    async def work(engine, parrot):
        parrot.going.clear()
        first = asyncio.create_task(engine.translate("m", ["a"]))
        await asyncio.sleep(0.05)
        bad = asyncio.create_task(engine.translate("m", ["b"], asked=AskedSettings(beam=-1)))
        good = asyncio.create_task(engine.translate("m", ["c"], asked=AskedSettings(beam=3)))
        parrot.going.set()
        assert (await first, await good) == (["a>"], ["c>3"])
        with pytest.raises(ConfigError, match="beam"):
            await bad

    with_engine(work)


def test_one_bad_sentence_spoils_no_other():
    async def work(engine, parrot):
        parrot.going.clear()
        first = asyncio.create_task(engine.translate("m", ["a"]))
        await asyncio.sleep(0.05)
        good, bad = (asyncio.create_task(engine.translate("m", [text])) for text in ("good", "bad"))
        await waiting(engine, 2)
        parrot.going.set()
        assert await good == ["good>"] and await first == ["a>"]
        with pytest.raises(DataError):
            await bad
        with pytest.raises(NotFoundError):
            await engine.translate("nothing", ["x"])

    with_engine(work)


def test_streams_give_way_to_others():
    async def work(engine, parrot):
        seen = []

        def numbers():
            for number in range(20):
                threading.Event().wait(0.02)
                yield number

        async def read():
            async for number in engine.stream(numbers):
                seen.append(number)

        reader = asyncio.create_task(read())
        while not seen:
            await asyncio.sleep(0.001)
        assert await engine.translate("m", ["between"]) == ["between>"]
        assert not reader.done()
        await reader
        assert seen == sorted(seen) and seen[-1] == 19

    with_engine(work)


def test_closing_finishes_what_was_accepted_and_takes_no_more():
    parrot = Parrot()
    engine = Engine(OneModel(parrot))  # type: ignore[arg-type]

    async def main():
        engine.start()
        parrot.going.clear()
        tasks = [asyncio.create_task(engine.translate("m", [str(i)], asked=wider(i))) for i in range(3)]
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError, match="shutting down"):
            await engine.run(lambda: None)
        parrot.going.set()
        assert await asyncio.gather(*tasks) == [["0>2"], ["1>3"], ["2>4"]]
        await closing

    asyncio.run(main())


# The registry


def test_room_is_made_for_a_model_that_does_not_fit_beside_others(folders: list[Path], monkeypatch):
    monkeypatch.setattr("regard.serve.models.registry.MIB", 1)  # so that the cap counts bytes
    sizes = [(folder / "model.safetensors").stat().st_size for folder in folders]
    registry = ModelRegistry(folders, memory=max(sizes) + min(sizes))
    names = [info.id for info in registry.infos()]
    for name in (*names, *names):
        registry.translator(name)
        loaded = [size for other, size in zip(names, sizes, strict=True) if registry.is_loaded(other)]
        assert registry.is_loaded(name) and sum(loaded) <= registry.memory
    with pytest.raises(UsageError, match="raise --memory"):
        ModelRegistry(folders, memory=min(sizes) - 1)


def test_names_are_unique_and_folders_are_known_once(folders: list[Path], tmp_path: Path):
    twin = tmp_path / folders[0].name
    shutil.copytree(folders[0], twin, ignore=shutil.ignore_patterns("checkpoints", "data"))
    registry = ModelRegistry([folders[0], folders[0], twin])
    assert [info.id for info in registry.infos()] == [twin.name, f"{twin.name}-2"]
    assert registry.find().id == folders[0].name
    with pytest.raises(NotFoundError, match="there are"):
        registry.find("nothing")
    with pytest.raises(NotFoundError, match="no model yet"):
        ModelRegistry().find()


def test_a_damaged_model_is_told_without_its_path(folders: list[Path], tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(folders[0], damaged, ignore=shutil.ignore_patterns("checkpoints", "data"))
    registry = ModelRegistry([damaged])
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelLoadError) as error:
        registry.translator("damaged")
    assert str(tmp_path) not in str(error.value)
