"""`headway version`: what to put at the top of a bug report."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib import metadata
from typing import Final

import headway
from headway.cli import OK

PACKAGES: Final = (
    "openai",
    "httpx2",
    "httpx",
    "pydantic",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "genai-prices",
    "tenacity",
    "rich",
)
SETTINGS: Final = ("HEADWAY_POLICY", "HEADWAY_DISABLED", "HEADWAY_TASK_LOG")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Print the versions, and which of the environment's settings are present."""
    versions: dict[str, str | None] = {
        "headway": headway.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }
    # Whether a variable is set, never its value: a policy URL may carry a token.
    settings = {name: name in os.environ for name in SETTINGS}
    if args.json:
        print(json.dumps({"versions": versions, "environment": settings}, indent=2))
        return OK
    width = max(map(len, (*versions, *settings)))
    for name, version in versions.items():
        print(f"{name:<{width}}  {version or '-'}")
    for name, is_set in settings.items():
        print(f"{name:<{width}}  {'set' if is_set else 'not set'}")
    return OK


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
