"""Where things are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "headway"
PYPROJECT = ROOT / "pyproject.toml"


def sources() -> list[Path]:
    """Every module of the package, sorted."""
    return sorted(SRC.rglob("*.py"))
