"""Where a model that was fetched by its Hugging Face id lies, asked where the server runs."""

from __future__ import annotations

from collections.abc import Sequence

_RESOLVE = (
    "import sys; from huggingface_hub import snapshot_download; "
    "print(snapshot_download(sys.argv[1], revision=sys.argv[2] or None, local_files_only=True))"
)


def resolving(python: Sequence[str], name: str, revision: str | None) -> list[str]:
    """Command whose last line is the folder of a model in the cache; it fails where the model is not there.

    ``python``: an interpreter that has huggingface_hub, which every SGLang brings.
    """
    return [*python, "-c", _RESOLVE, name, revision or ""]
