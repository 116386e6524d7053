"""The engine of another machine over TCP with TLS, certificates on both sides (``dockerd --tlsverify``)."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import docker
from docker.tls import TLSConfig
from docker.utils import version_lt

from runners.base import ServerFailure
from runners.docker.connect import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Connection, unreachable

_OLDEST = "1.24"
"""Any version that engines still take: the right one is asked for once the client is set up."""
_NEWEST = docker.constants.DEFAULT_DOCKER_API_VERSION
_FILES = ("ca.pem", "cert.pem", "key.pem")


class TlsConnection(Connection):
    """Nothing forwards a port here: a server's is published on the node's own address, unencrypted."""

    remote = True
    shell = False

    def __init__(self, url: str, certs: str) -> None:
        """``certs``: folder with ca.pem, cert.pem and key.pem, as for DOCKER_CERT_PATH. Raises ServerFailure."""
        self.address = url
        self._host = str(urlsplit(url).hostname)
        self._certs = Path(certs).expanduser()
        if missing := [name for name in _FILES if not (self._certs / name).is_file()]:
            raise ServerFailure("tls", f"{url}: {self._certs} has no {' and no '.join(missing)} (node.certs)")
        try:
            self.publish_on = socket.gethostbyname(self._host)
        except OSError as problem:
            told = f"{url}: there is no machine of this name ({problem.strerror}): check node.url"
            raise ServerFailure("node_unreachable", told) from problem
        try:
            self.client = self._client()
        except ServerFailure:
            raise
        except Exception as problem:
            raise _told(url, problem) from problem

    def reach(self, port: int) -> str:
        return f"http://{self.publish_on}:{port}"

    def words(self, *command: str) -> list[str]:
        raise ServerFailure("no_shell", f"{self.address}: over TLS a node runs containers only, not {command[0]}")

    def docker_words(self, *command: str) -> list[str]:
        ca, cert, key = (str(self._certs / name) for name in _FILES)
        tls = ["--tlsverify", "--tlscacert", ca, "--tlscert", cert, "--tlskey", key]
        return ["docker", "--host", self.address, *tls, *command]

    def check(self, timeout_s: float = 5.0) -> None:
        try:
            super().check(timeout_s)
        except ServerFailure as failure:
            raise unreachable(self.address, failure.__cause__) from failure

    def _client(self) -> docker.DockerClient:
        ca, cert, key = (str(self._certs / name) for name in _FILES)
        tls = TLSConfig(client_cert=(cert, key), ca_cert=ca, verify=True)
        # With a version given the constructor asks nothing: the client would first read REQUESTS_CA_BUNDLE and
        # proxies from the environment, which then stand in for the node's own certificate authority.
        client = docker.DockerClient(base_url=self.address, tls=tls, version=_OLDEST, timeout=CONNECT_TIMEOUT_S)
        client.api.trust_env = False
        answer = client.api.get(f"{client.api.base_url}/version")
        answer.raise_for_status()
        offered = str(answer.json()["ApiVersion"])
        client.api._version = _NEWEST if version_lt(_NEWEST, offered) else offered
        client.api.timeout = CALL_TIMEOUT_S
        return client


def _told(url: str, problem: Exception) -> ServerFailure:
    text = str(problem)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        told = f"{url}: its certificate is not one of {_FILES[0]} (node.certs), or not for this name ({text})"
        return ServerFailure("tls", told)
    if "alert" in text or "SSLError" in text:
        return ServerFailure("tls", f"{url}: the engine refuses this client's certificate (node.certs) ({text})")
    return unreachable(url, problem)
