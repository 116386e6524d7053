"""Typed models of the resolved configuration. Unknown keys and wrong types are refused; nothing here changes later."""

from orchestrator.schema.check import Check, Contains, Json, Number, Regex
from orchestrator.schema.experiment import ARM_GROUPS, ARM_KEYS, ArmConfig, Experiment
from orchestrator.schema.place import (
    AttachRunner,
    DockerRunner,
    EmbeddedRunner,
    LocalNode,
    MlflowTracking,
    NoTracking,
    ProcessRunner,
    SshNode,
)
from orchestrator.schema.server import Attention, Checkpoint, Drafter, Plugin, Target, Verification
from orchestrator.schema.suite import Load, LoadPoint, Message, Prompt, Suite

__all__ = [
    "ARM_GROUPS",
    "ARM_KEYS",
    "ArmConfig",
    "AttachRunner",
    "Attention",
    "Check",
    "Checkpoint",
    "Contains",
    "DockerRunner",
    "Drafter",
    "EmbeddedRunner",
    "Experiment",
    "Json",
    "Load",
    "LoadPoint",
    "LocalNode",
    "Message",
    "MlflowTracking",
    "NoTracking",
    "Number",
    "Plugin",
    "ProcessRunner",
    "Prompt",
    "Regex",
    "SshNode",
    "Suite",
    "Target",
    "Verification",
]
