"""What is changed in mutation testing: one operator, constant, condition or statement at a time."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src/headway/core"


Step = tuple[str, int | None]
Place = tuple[tuple[Step, ...], str, ast.AST]


class Mutant(NamedTuple):
    """One change: where, what it was and what it became."""

    module: str
    line: int
    text: str
    """The line, as it stands in the module."""
    was: str
    now: str
    function: str
    """Qualified name of the outermost function around it; "" outside of functions."""
    path: tuple[Step, ...]
    new: ast.AST
    nth: int = 1
    """Of several that read alike."""

    @property
    def name(self) -> str:
        """The same from run to run, whatever is written above it in the module."""
        name = f"{self.function} ┆ {self.text} ┆ {self.was} → {self.now}"
        return name if self.nth == 1 else f"{name} ┆ {self.nth}"

    def tree(self) -> ast.Module:
        """The module with the change in it."""
        tree = parsed(self.module)
        _put(tree, self.path, self.new)
        return ast.fix_missing_locations(tree)


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


def parsed(module: str) -> ast.Module:
    """A module of the core."""
    return ast.parse((CORE / f"{module}.py").read_text())


def digests(module: str) -> dict[str, str]:
    """By outermost function, and "" for what is outside of them: tells whether the code changed."""
    tree = parsed(module)
    found: dict[str, str] = {}

    def visit(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{scope}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                found[scope + child.name] = _digest(child)
                child.body = []

    visit(tree, "")
    return {"": _digest(tree), **found}


def _digest(node: ast.AST) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:12]


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module."""
    lines = (CORE / f"{module}.py").read_text().splitlines()
    alike = Counter[str]()
    for path, function, node in _places(parsed(module), (), "", ""):
        line = getattr(node, "lineno", 0)
        for new in replacements(node):
            ast.copy_location(new, node)
            text = lines[line - 1].strip()
            mutant = Mutant(module, line, text, _text(node), _text(new), function, path, new)
            alike[mutant.name] += 1
            yield mutant._replace(nth=alike[mutant.name])


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
        case ast.Assign(value=ast.Call(func=ast.Name(id="ParamSpec" | "TypeVar"))):
            return True
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
