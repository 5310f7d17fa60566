"""Options of `regard translate` that do not go together, refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from regard.errors import UsageError

TEXT_ALONE = {"--json", "--align", "--quality", "--attention", "--n-best"}  # what a document or a stream cannot show


def refuse_clashes(asked: AbstractSet[str], texts: int) -> None:
    """Refuse options, named as on the command line, that clash with each other or with a number of given texts."""
    if "--input" in asked and texts:
        raise UsageError("give texts or --input, not both")
    if "--attention" in asked and texts != 1:
        raise UsageError("--attention draws one sentence; give exactly one text")
    document = {"--input", "--output"} <= asked
    if (document or "--stream" in asked) and asked & TEXT_ALONE:
        way = "--stream" if "--stream" in asked else "--input with --output"
        raise UsageError(
            f"{way} gives the translation alone; leave out --json, --align, --quality, --attention and --n-best"
        )
    if {"--stream", "--memory"} <= asked:
        raise UsageError("--memory shows and takes whole translations; leave out --stream")
    if document and asked & {"--without", "--change"}:
        raise UsageError("--without and --change are for texts and lines; leave out --output")
    if (asked & {"--review", "--review-below"} and not document) or ("--encoding" in asked and texts):
        raise UsageError(
            "--review and --review-below are for documents (--input with --output), --encoding for what is read, not "
            "for texts"
        )
    if asked & {"--passes", "--reverse"} and ("--from" in asked or not asked & {"--quality", "--review-below"}):
        raise UsageError("--passes and --reverse need --quality or --review-below, and a model named without --from")
