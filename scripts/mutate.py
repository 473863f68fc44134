#!/usr/bin/env python3
"""Mutation testing of the core: change one thing at a time, and see whether a test notices.

    python scripts/mutate.py                     every module; a report at the end
    python scripts/mutate.py breaker budget      these only
    python scripts/mutate.py --write             keep the figures in tests/core/mutation.json
    python scripts/mutate.py --write --again     only what survived or was changed since they were

The tests run once with nothing changed, to learn how long each takes and which functions of the
core it calls. Then each mutant gets a fork of that process in which the changed function's code is
swapped in, and runs the tests that call it, quickest first, up to the first failure. A change
outside of functions (a constant, a default, a table) is imported afresh, with the files of tests
that call anything of the module.
Nothing on disk changes. Fleets and thread storms are left out: they take a thousand times as long.

A mutant is killed by a failing test, an error, or a time limit (a loop that no longer ends). Before
that both ways are tried with nothing changed, which nothing may kill. What survives is argued in
`tests/core/survivors.toml`; `make docs-tables` writes it into `docs/reference/mutation.md`.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import importlib
import importlib.abc
import importlib.machinery
import json
import mmap
import os
import signal
import sys
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from mutants import CORE, ROOT, Mutant, digests, mutants, parsed

TESTS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests/core").glob("test_*.py"))
    if "acceptance" not in path.name and "threads" not in path.name
]
T = TypeVar("T")
FIGURES = ROOT / "tests/core/mutation.json"
LIMIT_S = 15
"""CPU seconds. The slowest mutant that ends takes five; past this it loops."""
AFRESH_LIMIT_S = 60
"""The same where modules are imported anew: with nothing changed all tests take ten or more."""
FLAGS = ["-x", "-p", "no:cacheprovider", "-p", "no:terminal", "--noconftest", "-m", "not slow"]
FLAGS += ["-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib"]
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of a short test's time is plugins'

SURVIVED, KILLED, TIMED_OUT, BROKEN = "survived", "killed", "timed out", "broken"
LIKELY = {
    **dict.fromkeys(("machine", "settle", "retry", "sending", "waiting"), ("call", "sole")),
    "snapshot": ("snapshot", "model"),
    "expect": ("state",),
    "world": ("state", "place"),
    "views": ("engine",),
}
"""Whose tests are asked first about a module that has none, or not all, under its own name."""
NOTHING_TO_DO = pytest.ExitCode.NO_TESTS_COLLECTED
"""A file of slow tests only."""
BROKEN_CODE = 97
"""Exit code of a child that could not try its mutant: a fault of this script, not a kill."""


# ------------------------------------------------------------------------------- one mutant


def verdict(code: int) -> str:
    """What a child's exit code says."""
    if code < 0:
        return TIMED_OUT if -code in (signal.SIGVTALRM, signal.SIGALRM) else KILLED
    return {0: SURVIVED, BROKEN_CODE: BROKEN}.get(code, KILLED)


def in_a_fork(
    prepare: Callable[[], None], work: Callable[[], int], limit_s: float = LIMIT_S
) -> str:
    """Run in a silent child that a time limit ends; `work` gives its exit code."""
    pid = os.fork()
    if pid == 0:
        code = BROKEN_CODE
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            prepare()
            code = 1
            signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
            signal.alarm(int(20 * limit_s))  # for one that waits and does not loop
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return verdict(os.waitstatus_to_exitcode(status))


class Killers:
    """What has killed before kills again: tried first at the next mutant of the same place."""

    def __init__(self) -> None:
        self._note = mmap.mmap(-1, 4)  # shared with the children
        self._kills: Counter[tuple[object, object]] = Counter()

    def first(self, place: object, tests: Sequence[T]) -> list[T]:
        """The tests, those with most kills at this place first, else in their order."""
        return sorted(tests, key=lambda test: -self._kills[place, test])

    def trying(self, index: int) -> None:
        """In the child: which of the tests runs."""
        self._note[:] = index.to_bytes(4, "little")

    def count(self, place: object, tests: Sequence[object]) -> None:
        """In the parent: the one that ran last has killed."""
        self._kills[place, tests[int.from_bytes(self._note[:], "little")]] += 1


KILLERS = Killers()


def live_function(mutant: Mutant) -> Any:
    """The function that a mutant is a change of."""
    target: Any = importlib.import_module(f"headway.core.{mutant.module}")
    for name in mutant.function.split("."):
        target = vars(target)[name]
    if isinstance(target, property):
        target = target.fget
    elif isinstance(target, classmethod | staticmethod):
        target = target.__func__
    return target


def changed_code(mutant: Mutant) -> types.CodeType:
    """What becomes of its code."""
    code = compile(mutant.tree(), str(CORE / f"{mutant.module}.py"), "exec")
    return next(c for c in _codes(code) if c.co_qualname == mutant.function)


def can_swap(mutant: Mutant) -> bool:
    """Whether the live function can take that code: not where a change has left out the one
    mention of an enclosing name, as `super()` is of its class."""
    return changed_code(mutant).co_freevars == live_function(mutant).__code__.co_freevars


def swap_code(mutant: Mutant) -> None:
    """Give the live function the code of the changed one."""
    live_function(mutant).__code__ = changed_code(mutant)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a syntax tree."""

    def __init__(self, name: str, code: types.CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname == self._name:
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self._code, module.__dict__)


def afresh(module: str, tree: ast.Module, files: Sequence[str]) -> str:
    """Import the core anew, with one module from this tree, and collect and run these tests."""
    likely = LIKELY.get(module, (module,))
    files = sorted(files, key=lambda test: not any(part in test for part in likely))
    files = KILLERS.first(module, files)

    def prepare() -> None:
        code = compile(tree, str(CORE / f"{module}.py"), "exec")
        for name in [n for n in sys.modules if n.partition(".")[0] in ("headway", "tests")]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Replaced(f"headway.core.{module}", code))

    def work() -> int:
        for i, test in enumerate(files):
            KILLERS.trying(i)
            code = int(pytest.main([*FLAGS, test]))
            if code >= pytest.ExitCode.INTERNAL_ERROR and code != NOTHING_TO_DO:
                return BROKEN_CODE
            if code not in (0, NOTHING_TO_DO):
                return code
        return 0

    said = in_a_fork(prepare, work, AFRESH_LIMIT_S)
    if said == KILLED:
        KILLERS.count(module, files)
    return said


# ------------------------------------------------------------------------------- all of them


class Run:
    """A pytest plugin: collects once, then runs what it wants as often as it wants."""

    def __init__(
        self,
        modules: Sequence[str],
        only: frozenset[tuple[str, str]] | None,
        last: dict[str, Any],
        keep: Callable[[Any], None],
    ) -> None:
        self.modules = modules
        self.only = only
        self.last = last
        self.keep = keep
        self.figures: dict[str, dict[str, Any]] = {}
        self._callers: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
        self._seconds: dict[pytest.Item, float] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started = time.monotonic()
        self._learn(session)
        self._control(session)
        for module in self.modules:
            found: dict[str, list[str]] = {SURVIVED: [], KILLED: [], TIMED_OUT: []}
            known = list(mutants(module))
            for mutant in sorted(known, key=lambda mutant: not mutant.function):
                if self.only is not None and (module, mutant.name) not in self.only:
                    late = mutant.name in self.last[module]["timed_out"]
                    found[TIMED_OUT if late else KILLED].append(mutant.name)  # as it was
                    continue
                said = self._try(mutant)
                if said == BROKEN:
                    raise RuntimeError(f"could not try {described(mutant)}")
                found[said].append(mutant.name)
                if said != KILLED:
                    print(f"  {said} {described(mutant)}", flush=True)
            self.figures[module] = {
                "code": digests(module),
                "mutants": len(known),
                "killed": len(found[KILLED]) + len(found[TIMED_OUT]),
                "timed_out": found[TIMED_OUT],
                "survivors": found[SURVIVED],
            }
            self.keep(self.figures)
            seconds = time.monotonic() - started
            killed = self.figures[module]["killed"]
            print(f"{module:10} {killed:4} of {len(known):4} killed, {seconds:5.0f} s", flush=True)
        return True

    def _learn(self, session: pytest.Session) -> None:
        """Run every test once: how long it takes, which functions of the core it calls."""
        core = str(CORE)
        for item in session.items:
            profile = cProfile.Profile(subcalls=False, builtins=False)
            started = time.monotonic()
            profile.enable()
            try:
                run_one(item)
            finally:
                profile.disable()
            self._seconds[item] = time.monotonic() - started
            codes = [e.code for e in profile.getstats() if isinstance(e.code, types.CodeType)]
            for function in {
                (Path(code.co_filename).stem, code.co_qualname.split(".<locals>")[0])
                for code in codes
                if code.co_filename.startswith(core)
            }:
                self._callers[function].append(item)

    def _control(self, session: pytest.Session) -> None:
        """With nothing changed nothing may be killed, or every figure here means nothing."""
        quickest = sorted(session.items, key=self._seconds.__getitem__)
        said = [
            in_a_fork(lambda: None, lambda: run_all(quickest)),
            afresh("model", parsed("model"), TESTS),
        ]
        if said != [SURVIVED, SURVIVED]:
            raise RuntimeError(f"with nothing changed, forked and afresh: {said}")

    def _files(self, module: str) -> list[str]:
        """The files with a test that calls a function of this module; of the vocabulary all."""
        if module in ("model", "snapshot"):
            return TESTS
        calling = {
            item.path.relative_to(ROOT).as_posix()
            for (name, _), items in self._callers.items()
            if name == module
            for item in items
        }
        return [test for test in TESTS if test in calling]

    def _try(self, mutant: Mutant) -> str:
        if not mutant.function or not can_swap(mutant):
            return afresh(mutant.module, mutant.tree(), self._files(mutant.module))
        own = f"test_{mutant.module}.py"
        tests = sorted(
            self._callers[mutant.module, mutant.function],
            key=lambda item: (item.path.name != own, self._seconds[item]),
        )
        place = mutant.module, mutant.function
        tests = KILLERS.first(place, tests)
        said = in_a_fork(lambda: swap_code(mutant), lambda: run_all(tests))
        if said == KILLED:
            KILLERS.count(place, tests)
        return said


def run_all(items: Sequence[pytest.Item]) -> int:
    """0 when all pass; the first failure is raised."""
    for i, item in enumerate(items):
        KILLERS.trying(i)
        run_one(item)
    return 0


def run_one(item: pytest.Item) -> None:
    """Call one test; raises what it raises. Pytest's own way costs more than most of the tests, and
    is taken only by those that ask for fixtures."""
    assert isinstance(item, pytest.Function)
    known = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if set(item.fixturenames) - known.keys() - {"monkeypatch"}:
        failed = [r for r in runtestprotocol(item, log=False) if r.failed]
        if failed:
            raise AssertionError(failed[0].longreprtext)
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "monkeypatch" in item.fixturenames:
            known["monkeypatch"] = monkeypatch
        item.obj(**known)


def described(mutant: Mutant) -> str:
    """One line for people."""
    return f"{mutant.module}:{mutant.line}  {mutant.was}  ->  {mutant.now}"


def last_written() -> dict[str, Any]:
    """The figures as they were."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def keep(figures: dict[str, Any]) -> None:
    """Write the figures of what ran beside those of what did not."""
    modules = {path.stem for path in CORE.glob("*.py")}
    known = {k: v for k, v in (last_written() | figures).items() if k in modules}
    FIGURES.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def to_try_again(module: str, last: dict[str, Any] | None) -> Iterator[Mutant]:
    """What the figures say nothing of: functions that changed; and what may be killed by now."""
    known = last or {"code": {}, "survivors": []}
    now = digests(module)
    for mutant in mutants(module):
        is_changed = now[mutant.function] != known["code"].get(mutant.function)
        if is_changed or mutant.name in known["survivors"]:
            yield mutant


def main() -> int:
    modules = sorted(path.stem for path in CORE.glob("[a-z]*.py"))
    parser = argparse.ArgumentParser(description="Mutation testing of the core.")
    parser.add_argument("modules", nargs="*", default=modules, metavar="module")
    parser.add_argument("--count", action="store_true", help="count mutants, run nothing")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {FIGURES.name}")
    parser.add_argument("--again", action="store_true", help="what survived or was changed since")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    hypothesis.settings.register_profile(
        "mutation",
        deadline=None,
        derandomize=True,
        max_examples=25,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a failure is enough
    )
    hypothesis.settings.load_profile("mutation")
    if arguments.count:
        for module in arguments.modules:
            known = list(mutants(module))
            print(f"{module:10} {len(known):5}, {sum(not m.function for m in known)} afresh")
        return 0
    last = last_written()
    only = None
    if arguments.again:
        only = frozenset(
            (module, mutant.name)
            for module in arguments.modules
            for mutant in to_try_again(module, last.get(module))
        )
    run = Run(arguments.modules, only, last, keep if arguments.write else lambda _: None)
    ended = pytest.main([*FLAGS, *TESTS], plugins=[run])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not run.figures:
        print(f"broken off: {ended!r}")
        return 2
    total, killed = (sum(f[k] for f in run.figures.values()) for k in ("mutants", "killed"))
    print(f"killed {killed} of {total}: {killed / total:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
