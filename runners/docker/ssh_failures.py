"""Why OpenSSH did not bring us to a node, from what it said; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runners.base import ServerFailure

_SAID = 400
_SIGNATURES = (
    # (cause, pattern in ssh's own words, what to do); the first that matches counts; {host}: as configured
    (
        "ssh_host_key",
        r"IDENTIFICATION HAS CHANGED",
        "its host key is another than the one known here: find out why, then ssh-keygen -R the old one",
    ),
    (
        "ssh_host_key",
        r"Host key verification failed|No \S+ host key is known",
        "its host key is not known here: connect once by hand (ssh {host}) and compare it",
    ),
    (
        "ssh_denied",
        r"Permission denied|Too many authentication failures|no more authentication methods",
        "it does not let this user in without a question: load a key (ssh-add), or name it in ~/.ssh/config, until "
        "ssh -o BatchMode=yes {host} true works",
    ),
    ("ssh_name", r"Could not resolve hostname", "there is no machine of this name: check node.host"),
    (
        "ssh_forward",
        r"administratively prohibited|forwarding failed|Could not request local forwarding",
        "its sshd forbids forwarding: AllowTcpForwarding and AllowStreamLocalForwarding have to be yes there",
    ),
    (
        "node_unreachable",
        r"timed out|No route to host|Network is unreachable|Connection refused|Connection reset|Connection closed|"
        r"not responding|Host is down|banner exchange",
        "it cannot be reached: is it up, and does its sshd listen there?",
    ),
)


def refused(host: str, said: str) -> ServerFailure:
    """``said``: standard error of an ssh that ended before it was connected."""
    for cause, pattern, advice in _SIGNATURES:
        if re.search(pattern, said, re.IGNORECASE):
            return ServerFailure(cause, f"{host}: {advice.replace('{host}', host)} (ssh: {said.strip()[-_SAID:]})")
    return ServerFailure("ssh", f"{host}: ssh ended: {said.strip()[-_SAID:] or 'without a word'}")


def no_socket(host: str, path: str, user: str, states: Sequence[str]) -> ServerFailure | None:
    """``states``: what was seen of the socket there: ``absent``, ``denied``, or nothing."""
    if "absent" in states:
        return ServerFailure(
            "engine_gone", f"{host}: there is no {path}: start Docker there, or correct node.docker_socket"
        )
    if "denied" in states:
        return ServerFailure(
            "engine_denied", f"{host}: {user} may not use {path}: add {user} to the group docker there"
        )
    return None
