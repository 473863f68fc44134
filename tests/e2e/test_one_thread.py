"""A hundred routers, forks and an exit: one refresh thread per process, none before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.fleet import document
from tests.e2e.replies import answer
from tests.policy.servers import policy_server
from tests.servers import Server

SCRIPT = """
import json, os, sys, threading, time
import openai, headway
from headway.policy.refresh import THREAD_NAME

url, own, path = sys.argv[1:]

def threads():
    return sum(t.name == THREAD_NAME for t in threading.enumerate())

def say(router):
    with openai.OpenAI(api_key="k", base_url=own) as plain:
        made = router.wrap(plain)
        return made.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}]
        ).choices[0].message.content

def everyone_is_refreshed(routers):
    # each supply is looked at by the one thread: its next look lies ahead
    until = time.monotonic() + 20
    while not all(r._supply.due_in_s() > 0 for r in routers):
        assert time.monotonic() < until
        time.sleep(0.005)

said = {"imported": threading.active_count()}
policies = [url, path, json.load(open(path))]
options = {"allowed_hosts": [own.removesuffix("/v1")]}
routers = [headway.Router(policies[i % 3], **options) for i in range(100)]
said["built"] = threads()
assert say(routers[0]) == "Hello"
said["first use"] = threads()
for router in routers:
    router.ensure_started()
followed = [r for i, r in enumerate(routers) if i % 3 < 2]
everyone_is_refreshed(followed)
said["all in use"] = threads()

read, write = os.pipe()
child = os.fork()
if child == 0:
    status = 1
    try:
        found = [threads()]
        assert say(routers[1]) == "Hello"
        found.append(threads())
        for router in routers:
            router.ensure_started()
        found.append(threads())
        os.write(write, json.dumps(found).encode())
        status = 0
    finally:
        os._exit(status)
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
said["child"] = json.loads(os.read(read, 1000))
said["parent after the fork"] = threads()
del router, followed
routers.clear()
print(json.dumps(said), flush=True)
print(json.dumps({"exit_at": time.monotonic()}), flush=True)
"""


def run(script: str, *arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hundred_routers_and_a_fork_have_one_thread_each(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    own = serve(answer()).url
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document({"a": own})))
    with policy_server() as server:
        server.content, server.etag = path.read_bytes(), '"7"'
        said, _ = run(SCRIPT, server.url, own, str(path))

    assert said == {
        "imported": 1,
        "built": 0,
        "first use": 1,
        "all in use": 1,
        "child": [0, 1, 1],
        "parent after the fork": 1,
    }


HANGING = """
import sys, threading, time, json
import headway
url, own = sys.argv[1:]
router = headway.Router(url, allowed_hosts=[own.removesuffix("/v1")])
supply = router._supply
supply._source._timeout_s = 600.0
supply._pace.due = 0.0
router.ensure_started()
until = time.monotonic() + 20
while not supply._lock.locked():
    assert time.monotonic() < until
    time.sleep(0.001)
print(json.dumps({"hanging": True}), flush=True)
"""


def test_the_interpreter_ends_while_a_fetch_hangs(serve: Callable[..., Server]) -> None:
    own = serve(answer()).url
    with policy_server() as server:
        good = json.dumps(document({"a": own})).encode()

        def once(handler: Any) -> Any:
            if len(server.requests) == 1:
                return 200, {}, good
            handler.rfile.read(1)  # never answers
            return None

        server.answer = once
        assert run(HANGING, server.url, own) == [{"hanging": True}]  # in less than 60 s
