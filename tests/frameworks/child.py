"""Inside a framework's own environment: `python -P child.py NAME PART OUT.json`.

PART is
    ways      every way of working, through a failover, with the framework's own spans off
    spans     the same in an application that has OpenTelemetry, the framework's own spans on
    retries   how many requests one model call makes of an endpoint that never answers
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main(name: str, part: str, out: str) -> int:
    _find_our_tests()
    from tests.frameworks.registry import FRAMEWORKS

    framework = FRAMEWORKS[name]
    os.environ.update(framework.quiet)
    os.environ["OPENAI_API_KEY"] = "sk-own"
    for name in ("OPENAI_BASE_URL", "HEADWAY_POLICY", "HEADWAY_DISABLED", "HEADWAY_TASK_LOG"):
        os.environ.pop(name, None)
    result: dict[str, Any] = {"versions": _versions(framework.packages)}
    if part == "retries":
        from tests.frameworks.retries import measure

        result["retries"] = measure(framework)
    else:
        result["ways"] = _ways(framework, native=part == "spans")
    Path(out).write_text(json.dumps(result))
    return 1 if "failed" in result.get("ways", {}).values() else 0


def _find_our_tests() -> None:
    # Some distributions install a package called "tests", which would be found instead.
    package = ModuleType("tests")
    package.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = package


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in (*(p.partition("[")[0] for p in packages), "openai", "httpx2", "httpx"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _ways(framework: Any, *, native: bool) -> dict[str, Any]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if native:
        os.environ.update(framework.spans)
        trace.set_tracer_provider(provider)

    app = importlib.import_module(framework.module)
    if native and hasattr(app, "switch_spans_on"):
        app.switch_spans_on()
    from tests.frameworks.checks import perform, rehearse
    from tests.frameworks.page import run_snippet
    from tests.frameworks.surroundings import changes, surroundings

    def names(sync: Any, client: Any) -> dict[str, Any]:
        return run_snippet(framework, sync=sync, client=client)

    def spans() -> list[Any]:
        found = list(exporter.get_finished_spans())
        exporter.clear()
        return found

    results: dict[str, Any] = {}
    for title, way in app.WAYS.items():
        try:
            rehearse(way, names)
        except Exception:
            results[title] = "failed"
            print(f"--- {framework.name}, {title}, plain:\n{traceback.format_exc()}")
    before = surroundings()
    import headway

    if not native:
        headway.otel.configure(tracer_provider=provider)
    for title, way in app.WAYS.items():
        if title in results:
            continue
        try:
            results[title] = perform(way, names, spans)
        except Exception:
            results[title] = "failed"
            print(f"--- {framework.name}, {title}, wrapped:\n{traceback.format_exc()}")
    if touched := changes(before, surroundings()):
        results["surroundings"] = "failed"
        print(f"--- {framework.name}: not as it was: {', '.join(touched)}")
    return results


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
