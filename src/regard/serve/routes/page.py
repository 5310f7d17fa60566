"""The page: one document, one script and one style sheet.

Its modules and style sheets are files of their own (`serve/lens/`, `look/web/`, and those that families bring), and are
joined once for each process. The addresses of script and style hold a hash of their content, so browsers keep them for
good; the document that names them is asked for each time. All addresses are relative, so the page works below any path.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from regard.families.catalog import VIEWS, family_script, page_scripts
from regard.look.page import bundle, read_module
from regard.look.panels import AXES
from regard.serve.http.responses import NotFoundError

LENS = Path(__file__).parents[1] / "lens"
SHARED = Path(str(resources.files("regard.look"))) / "web"  # modules that the lens shares with offline pages
STYLES = (LENS / "style.css", LENS / "views.css", SHARED / "shared.css", SHARED / "features.css")
FRESH = {"cache-control": "no-cache"}  # browsers revalidate, so that an upgrade never mixes old files with new ones
FOR_GOOD = {"cache-control": "public, max-age=31536000, immutable"}


class PageFile(NamedTuple):
    """A file of the page, plain and compressed."""

    plain: bytes
    packed: bytes
    media_type: str
    headers: dict[str, str]

    @classmethod
    def of(cls, text: str, media_type: str, headers: dict[str, str]) -> PageFile:
        plain = text.encode()
        return cls(plain, gzip.compress(plain, 9, mtime=0), media_type, headers | {"vary": "Accept-Encoding"})

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.plain).hexdigest()[:16]

    def response(self, request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.plain, headers=self.headers, media_type=self.media_type)
        headers = self.headers | {"content-encoding": "gzip"}
        return Response(self.packed, headers=headers, media_type=self.media_type)


@cache
def page_files() -> dict[str, PageFile]:
    """The files by their names below `/lens/page/`; the document has none."""
    views = [f"look/axes/{axis.view}.js" for axis in AXES.values() if axis.view not in VIEWS]
    script = bundle([*dict.fromkeys(views), *VIEWS.values(), *page_scripts(), "main.js"], _read)
    style = "".join(file.read_text(encoding="utf-8") for file in STYLES)
    built = {
        "page.js": PageFile.of(script, "text/javascript", FOR_GOOD),
        "page.css": PageFile.of(style, "text/css", FOR_GOOD),
    }
    document, named = (LENS / "index.html").read_text(encoding="utf-8"), {}
    for name, file in built.items():
        stem, suffix = name.split(".")
        address = f"{stem}-{file.digest}.{suffix}"
        document, named[address] = document.replace(f"lens/page/{name}", f"lens/page/{address}"), file
    return named | {"": PageFile.of(document, "text/html", FRESH)}


def _read(address: str) -> str:
    """A module by its address below `/lens/`."""
    if address.startswith(("look/", "family/")):
        return read_module(address)
    return (LENS / address).read_text(encoding="utf-8")


def page_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def document(request: Request) -> Response:
        return page_files()[""].response(request)

    @router.get("/lens/page/{name}")
    def file(request: Request, name: str) -> Response:
        if name not in page_files():
            raise NotFoundError(f"the page has no file {name}; reload it")
        return page_files()[name].response(request)

    @router.get("/lens/family/{name}/{file}")
    def script(name: str, file: str) -> Response:
        """A module of a family as it is written."""
        try:
            return Response(family_script(name, file).read_bytes(), media_type="text/javascript", headers=FRESH)
        except KeyError:
            raise NotFoundError(f"there is no script {name}/{file}") from None

    return router
