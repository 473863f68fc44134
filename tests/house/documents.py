"""Run the code that documents show, offline.

In a Markdown file, the Python blocks run in order and share their names, so a page reads as one
session. `await` works at the top level. Around them, in comments that a reader doesn't see:

    <!-- file: policy.json -->      the next block becomes that file in the working directory
    <!-- output -->                 the next block is what the Python block before it prints
    <!-- skip: reason -->           the next block does not run
    <!-- run
    world.script("api.openai.com", [503, "hi"])
    -->                             code that runs unseen; `world` decides what endpoints answer

Every HTTP request ends in a `World`, whatever its host: nothing leaves the process.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headway.testing import Reply, Script, ScriptedEndpoints
from headway.testing.endpoints import DOMAIN

DIRECTIVE = re.compile(r"^<!-- (file|output|skip|run)\b:?[ ]*(.*?)\s*(-->)?$")
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a document to act on."""

    kind: str
    """python | file | output"""
    text: str
    line: int
    name: str = ""
    """Of a file."""


def blocks(document: str) -> Iterator[Block]:
    """The blocks of a Markdown document, in order."""
    lines = document.splitlines()
    directive, argument = "", ""
    at = 0
    while at < len(lines):
        start = at
        if found := DIRECTIVE.match(lines[at]):
            directive, argument = found[1], found[2]
            if directive == "run":
                end = lines.index("-->", at)
                yield Block("python", "\n".join(lines[at + 1 : end]), at + 2)
                directive, at = "", end
        elif fence := FENCE.match(lines[at]):
            end = lines.index(fence[1], at + 1)
            text = "\n".join(lines[at + 1 : end])
            if directive in {"file", "output"}:
                yield Block(directive, text, start + 2, argument)
            elif fence[2] == "python" and directive != "skip":
                yield Block("python", text, start + 2)
            directive, at = "", end
        at += 1


class World(ScriptedEndpoints):
    """Every host there is. Those without a script answer "ok"; files are served by name."""

    def __init__(self, directory: Path) -> None:
        super().__init__({"api.openai.com": "ok"})
        self._directory = directory

    def script(self, endpoint: str, script: Script) -> None:
        """Say how a host answers."""
        self._scripts.setdefault(endpoint, ["ok"])
        super().script(endpoint, script)

    def answer(self, host: str, path: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Answer for any host."""
        name = host.removesuffix(f".{DOMAIN}")
        if name not in self._scripts:
            self.script(name, "ok")
        return super().answer(host, path, body, headers)

    def served_file(self, path: str) -> bytes | None:
        """The content of the file that a URL path ends with, if there is one here."""
        file = self._directory / Path(path).name
        return file.read_bytes() if file.is_file() else None


@contextlib.contextmanager
def offline(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    """Every HTTP request of this process ends in the yielded world."""
    world = World(directory)
    transport: Any = world.transport()

    def handle(_self: object, request: httpx2.Request) -> httpx2.Response:
        content = world.served_file(request.url.path)
        if content is not None:
            return httpx2.Response(200, content=iter([content]))
        return transport.handle_request(request)  # type: ignore[no-any-return]

    async def handle_async(_self: object, request: httpx2.Request) -> httpx2.Response:
        return await transport.handle_async_request(request)  # type: ignore[no-any-return]

    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", handle)
    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", handle_async)
    monkeypatch.chdir(directory)
    for name in ("OPENAI_API_KEY", "AZURE_KEY", "AZURE_OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-documentation")
    for name in ("HEADWAY_POLICY", "HEADWAY_DISABLED", "HEADWAY_TASK_LOG", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    yield world


def run_document(path: Path, world: World) -> int:
    """Run a document's blocks and return how many there were. Raises what they raise."""
    names: dict[str, Any] = {"__name__": "__document__", "world": world, "Reply": Reply}
    printed = ""
    count = 0
    with asyncio.Runner() as runner:
        for block in blocks(path.read_text()):
            if block.kind == "file":
                Path(block.name).write_text(block.text)
            elif block.kind == "output":
                assert printed.strip() == block.text.strip(), f"{path.name}:{block.line}"
            else:
                printed = _run(block, path, names, runner)
                count += 1
    return count


def _run(block: Block, path: Path, names: dict[str, Any], runner: asyncio.Runner) -> str:
    # Line numbers of the document, so that a traceback points into it.
    text = "\n" * (block.line - 1) + block.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(text, str(path), "exec", flags=flags, dont_inherit=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = eval(code, names)
        if inspect.iscoroutine(result):
            runner.run(result)
    return out.getvalue()
