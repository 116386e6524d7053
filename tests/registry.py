"""A registry on loopback, which engines take without TLS: one image of one layer, and nothing else."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import secrets
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "spec/small"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER_BYTES = 3 * 2**20
"""Enough for an engine to tell how far it is."""


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _image() -> tuple[bytes, dict[str, bytes]]:
    """Manifest, and what it names by digest."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("content")
        entry.size = _LAYER_BYTES
        tar.addfile(entry, io.BytesIO(secrets.token_bytes(_LAYER_BYTES)))  # does not get smaller
    layer = gzip.compress(archive.getvalue())
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/content"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(archive.getvalue())]},
        }
    ).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": len(config),
            "digest": _digest(config),
        },
        "layers": [
            {
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": len(layer),
                "digest": _digest(layer),
            }
        ],
    }
    return json.dumps(manifest).encode(), {_digest(config): config, _digest(layer): layer}


@contextmanager
def serving() -> Iterator[tuple[str, str]]:
    """(``127.0.0.1:port``, digest of its image ``NAME:1``)."""
    manifest, blobs = _image()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind = "application/json"
            if self.path == "/v2/":
                content: bytes | None = b"{}"
            elif self.path in (f"/v2/{NAME}/manifests/1", f"/v2/{NAME}/manifests/{_digest(manifest)}"):
                content, kind = manifest, _MANIFEST
            else:
                content = blobs.get(self.path.removeprefix(f"/v2/{NAME}/blobs/"))
            if content is None:
                content = b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
                self.send_response(404)
            else:
                self.send_response(200)
                self.send_header("Docker-Content-Digest", _digest(content))
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", _digest(manifest)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
