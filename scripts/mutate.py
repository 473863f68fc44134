#!/usr/bin/env python3
"""Mutation testing of the core: change one thing at a time, and see whether a test notices.

    python scripts/mutate.py                     every module; a report at the end
    python scripts/mutate.py breaker budget      these only
    python scripts/mutate.py --write FILE        the figures and survivors as JSON

The tests run once with nothing changed, to learn how long each takes and which functions of the
core it calls. Then each mutant gets a fork of that process in which the changed function's code is
swapped in, and runs the tests that call it, quickest first, up to the first failure. A change
outside of functions (a constant, a default, a table) is imported afresh in a process of its own.
Nothing on disk changes. Fleets and thread storms are left out: they take a thousand times as long.

A mutant is killed by a failing test, an error, or a time limit (a loop that no longer ends).
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src/headway/core"
TESTS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests/core").glob("test_*.py"))
    if "acceptance" not in path.name and "threads" not in path.name
]
LIMIT_S = 15
"""CPU seconds. The slowest mutant that ends takes five; past this it loops."""
FLAGS = ["-x", "-p", "no:cacheprovider", "-p", "no:terminal", "--noconftest", "-m", "not slow"]
FLAGS += ["-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib"]
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of a short test's time is plugins'


class Mutant(NamedTuple):
    """One change: where, what it was and what it became."""

    module: str
    number: int
    line: int
    was: str
    now: str
    function: str
    """Qualified name of the outermost function around it; "" outside of functions."""
    tree: ast.Module


# ------------------------------------------------------------------------------- mutations

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed into."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield _with(node, ops=[SWAPS[type(op)]()])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield _with(node, op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield _with(node, value=not value)
        case ast.Constant(value=int() | float() as value):
            yield _with(node, value=value + 1)
        case ast.Constant(value=str() as value):
            yield _with(node, value="XX" + value)
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(value=value) if not _is_none(value):
            yield _with(node, value=ast.Constant(None))
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield _with(node, value=ast.Constant(None))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    tree = ast.parse((CORE / f"{module}.py").read_text())
    number = 0
    for path, function, node in list(_places(tree, (), "", "")):
        for new in replacements(node):
            changed = copy.deepcopy(tree)
            _put(changed, path, ast.copy_location(new, node))
            ast.fix_missing_locations(changed)
            line = getattr(node, "lineno", 0)
            yield Mutant(module, number, line, _text(node), _text(new), function, changed)
            number += 1


Step = tuple[str, int | None]
Place = tuple[tuple[Step, ...], str, ast.AST]


def _places(node: ast.AST, path: tuple[Step, ...], scope: str, function: str) -> Iterator[Place]:
    """Nodes worth changing: the way to them from the root, and the function they are in."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_out_of_scope(child):
                continue
            here = (*path, (name, i if isinstance(value, list) else None))
            inside, within = scope, function
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                inside = f"{scope}.{child.name}" if scope else child.name
            if isinstance(node, ast.FunctionDef) and name == "body" and not function:
                within = scope
            if hasattr(child, "lineno"):
                yield here, within, child
            yield from _places(child, here, inside, within)


def _is_out_of_scope(node: ast.AST) -> bool:
    """Docstrings, interfaces, names on the wire, imports, `__slots__`, type aliases, assertions."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.ClassDef(bases=bases):
            return any(isinstance(b, ast.Name) and b.id == "Protocol" for b in bases) or any(
                isinstance(b, ast.Attribute) and b.attr == "StrEnum" for b in bases
            )
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in ("__slots__", "EVENTS", "Weights", "Emit", "Strategy", "Step")
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr():
            return True
    return False


def _put(tree: ast.AST, path: Sequence[Step], new: ast.AST) -> None:
    node: ast.AST = tree
    for name, i in path[:-1]:
        value = getattr(node, name)
        node = value if i is None else value[i]
    name, i = path[-1]
    if i is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[i] = new


def _text(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    return text.splitlines()[0][:70]


# ------------------------------------------------------------------------------- running


def in_a_fork(work: Callable[[], bool]) -> bool:
    """Run in a silent child that a time limit ends; whether it said yes."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            signal.alarm(10 * LIMIT_S)  # for one that waits and does not loop
            code = 0 if work() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == 0


def swap_code(mutant: Mutant) -> None:
    """Give the live function the code of the changed one."""
    target: Any = importlib.import_module(f"headway.core.{mutant.module}")
    for name in mutant.function.split("."):
        target = vars(target)[name]
    if isinstance(target, property):
        target = target.fget
    code = compile(mutant.tree, str(CORE / f"{mutant.module}.py"), "exec")
    target.__code__ = next(c for c in _codes(code) if c.co_qualname == mutant.function)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


class Run:
    """A pytest plugin: collects once, then runs what it wants as often as it wants."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules
        self.counts: dict[str, list[int]] = {}
        self.survivors: list[Mutant] = []
        self._callers: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
        self._seconds: dict[pytest.Item, float] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started = time.monotonic()
        self._learn(session)
        for module in self.modules:
            total, killed = 0, 0
            for mutant in mutants(module):
                total += 1
                if self._survives(mutant):
                    self.survivors.append(mutant)
                    print(f"  survived {described(mutant)}", flush=True)
                else:
                    killed += 1
            self.counts[module] = [total, killed]
            seconds = time.monotonic() - started
            print(f"{module:10} {killed:4} of {total:4} killed, {seconds:5.0f} s", flush=True)
        return True

    def _learn(self, session: pytest.Session) -> None:
        """Run every test once: how long it takes, which functions of the core it calls."""
        core = str(CORE)
        for item in session.items:
            called: set[tuple[str, str]] = set()

            def note(
                frame: types.FrameType, event: str, _: object, called: set[Any] = called
            ) -> None:
                code = frame.f_code
                if event == "call" and code.co_filename.startswith(core):
                    name = code.co_qualname.split(".<locals>")[0]
                    called.add((Path(code.co_filename).stem, name))

            started = time.monotonic()
            sys.setprofile(note)
            try:
                run_one(item)
            finally:
                sys.setprofile(None)
            self._seconds[item] = time.monotonic() - started
            for function in called:
                self._callers[function].append(item)

    def _survives(self, mutant: Mutant) -> bool:
        if not mutant.function:
            command = [sys.executable, __file__, "--one", f"{mutant.module}:{mutant.number}"]
            return subprocess.run(command, check=False, capture_output=True).returncode == 0
        own = f"test_{mutant.module}.py"
        tests = sorted(
            self._callers[mutant.module, mutant.function],
            key=lambda item: (item.path.name != own, self._seconds[item]),
        )

        def work() -> bool:
            swap_code(mutant)
            for item in tests:
                run_one(item)
            return True

        return in_a_fork(work)


def run_one(item: pytest.Item) -> None:
    """Call one test; raises what it raises. Pytest's own way costs more than most of the tests."""
    assert isinstance(item, pytest.Function)
    known = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        if "monkeypatch" in item.fixturenames:
            known["monkeypatch"] = monkeypatch
        item.obj(**known)


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


def run_afresh(place: str) -> int:
    """In a process of its own: import the core with one module changed, and run the tests."""
    module, number = place.split(":")
    mutant = next(m for m in mutants(module) if m.number == int(number))
    code = compile(mutant.tree, str(CORE / f"{module}.py"), "exec")
    sys.meta_path.insert(0, _Replaced(f"headway.core.{module}", code))
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * LIMIT_S)
    first = [t for t in TESTS if module in t]
    return int(pytest.main([*FLAGS, *first, *(t for t in TESTS if t not in first)]))


def described(mutant: Mutant) -> str:
    """One line for people."""
    return f"{mutant.module}:{mutant.line}  {mutant.was}  ->  {mutant.now}"


def main() -> int:
    modules = sorted(path.stem for path in CORE.glob("[a-z]*.py"))
    parser = argparse.ArgumentParser(description="Mutation testing of the core.")
    parser.add_argument("modules", nargs="*", default=modules, metavar="module")
    parser.add_argument("--count", action="store_true", help="count mutants, run nothing")
    parser.add_argument("--write", type=Path, help="write the figures as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
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
    if arguments.one:
        return run_afresh(arguments.one)
    if arguments.count:
        for module in arguments.modules:
            known = list(mutants(module))
            print(f"{module:10} {len(known):5}, {sum(not m.function for m in known)} afresh")
        return 0
    run = Run(arguments.modules)
    pytest.main([*FLAGS, *TESTS], plugins=[run])
    if not run.counts:
        return 2
    total, killed = (sum(c[i] for c in run.counts.values()) for i in (0, 1))
    print(f"killed {killed} of {total}: {killed / total:.1%}")
    if arguments.write:
        found = {"counts": run.counts, "survivors": [described(m) for m in run.survivors]}
        arguments.write.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
