"""A process beside the server that says, some ten times a second, what its GPUs, its processes and its node do.

`python -m runners.telemetry --help`. Needs the standard library, psutil and nvidia-ml-py and nothing else of this
project, so that it runs on any node and in any container where a server runs. docs/reference/telemetry.md describes
its lines.
"""
