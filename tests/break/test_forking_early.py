"""A process that forks right after its first call: its child has prices and an end too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import OK

SCRIPT = """
import os, sys, threading, time, openai, headway
url = sys.argv[1]
policy = {
    "schema_version": "1.0",
    "version": 1,
    "endpoints": {"a": {"base_url": url, "provider": "openai"}},
    "routes": [{"weights": {"a": 1}}],
}
client = headway.wrap(openai.OpenAI(base_url=url, api_key="k"), policy=policy)
with headway.task("work") as task:
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}])
    if os.fork() == 0:
        for _ in range(8):  # so that no new thread is taken for the parent's, by its identity
            threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
        print(task.cost)
        sys.exit()
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_prices_load_does_not_wait_for_ever(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    slow = tmp_path / "genai_prices"
    slow.mkdir()
    (slow / "__init__.py").write_text("import time; time.sleep(1)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, serve(OK).url],
        capture_output=True,
        text=True,
        timeout=60,  # a busy machine takes ten; for ever is what is meant
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
    )

    assert ran.stdout.strip() == "None"
