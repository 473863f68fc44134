"""Entries of the API reference, from signatures and docstrings.

    <!-- api: headway.wrap -->      a function or a class: signature, text, members
    <!-- api: headway.events -->    a module: a row for each of its public names

What is told of an attribute is the text that stands below its assignment in the source.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.house.api import public_names
from tests.house.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"
LINE_MAX = 96
_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*)$")
_SECTION = re.compile(r"^(Args|Raises):$")
_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
NOT_TOLD = frozenset({"model_config", "code_prefix", "raw"})
"""Public by name, and nothing that an application has to do with."""


def entry(where: str) -> str:
    """The entry of a public name: `headway.Router`, or of a whole module."""
    value = found(where)
    if isinstance(value, ModuleType):
        return table(("name", "has", "is"), (_row(name, value) for name in public_names(value)))
    parts = [f"```text\n{signature(where, value)}\n```\n" if callable(value) else ""]
    parts.append(prose(inspect.getdoc(value) or ""))
    if inspect.isclass(value):
        rows = [[f"`{name}`", text] for name, text in members(value)]
        if rows:
            parts.append(table(("member", "is"), rows))
    return "\n".join(part for part in parts if part)


def found(where: str) -> Any:
    """The object of this name."""
    module, _, name = where.rpartition(".")
    try:
        return getattr(import_module(module), name) if module else import_module(name)
    except (AttributeError, ImportError):
        return import_module(where)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _row(name: str, module: ModuleType) -> list[str]:
    value = getattr(module, name)
    if inspect.isclass(value):
        has = ", ".join(f"`{member}`" for member, _ in members(value)) or "-"
        return [f"`{name}`", has, first_sentence(inspect.getdoc(value))]
    if inspect.isroutine(value):
        return [f"`{name}{_bare(value)}`", "-", first_sentence(inspect.getdoc(value))]
    return [f"`{name}`", "-", first_sentence(constants(module).get(name))]


def first_sentence(text: str | None) -> str:
    """The first sentence, on one line."""
    flat = " ".join((text or "").split())
    return re.split(r"(?<=[a-z`)\"])\. (?=[A-Z`])", flat)[0].rstrip(".")


# --------------------------------------------------------------------------- signatures


def signature(where: str, value: Callable[..., Any]) -> str:
    """How it is called, one parameter a line where one line is not enough."""
    if _is_made_elsewhere(value):
        return where
    shown = inspect.signature(value)
    given = [_parameter(p) for p in shown.parameters.values()]
    marks = _with_marks(shown, given)
    returned = shown.return_annotation
    after = "" if inspect.isclass(value) or returned in (shown.empty, "None", None) else returned
    arrow = f" -> {_typed(after)}" if after else ""
    line = f"{where}({', '.join(marks)}){arrow}"
    if len(line) <= LINE_MAX:
        return line
    return f"{where}(\n" + "".join(f"    {mark},\n" for mark in marks) + f"){arrow}"


def _is_made_elsewhere(value: object) -> bool:
    """Documents and enums have members, protocols are written by whoever fulfils them, and tuples
    and tasks are what is returned."""
    return inspect.isclass(value) and (
        issubclass(value, enum.Enum | tuple)
        or hasattr(value, "model_fields")
        or value.__name__ == "Task"
        or getattr(value, "_is_protocol", False)
    )


def _with_marks(shown: inspect.Signature, given: list[str]) -> list[str]:
    marks: list[str] = []
    kinds = [p.kind for p in shown.parameters.values()]
    for at, (kind, text) in enumerate(zip(kinds, given, strict=True)):
        before = kinds[at - 1] if at else None
        if before is inspect.Parameter.POSITIONAL_ONLY and kind is not before:
            marks.append("/")
        if kind is inspect.Parameter.KEYWORD_ONLY and before not in (
            kind,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            marks.append("*")
        marks.append(text)
    return marks


def _parameter(parameter: inspect.Parameter) -> str:
    name = _STARS.get(parameter.kind, "") + parameter.name
    typed = "" if parameter.annotation is parameter.empty else f": {_typed(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{name}{typed}"
    default = parameter.default
    text = default.__name__ if inspect.isclass(default) else repr(default)
    if "<factory>" in text:
        text = "..."
    return f"{name}{typed} = {text}" if typed else f"{name}={text}"


def _typed(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.replace("ForwardRef(", "").replace("typing.", "").strip("'\"")
    return text.removesuffix("')")


def _bare(value: Callable[..., Any]) -> str:
    """The call without types: what fits into a table."""
    shown = inspect.signature(value)
    names = [
        f"{_STARS.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '=...'}"
        for p in shown.parameters.values()
    ]
    marks = _with_marks(shown, names)
    return f"({', '.join(marks)})"


# --------------------------------------------------------------------------- texts


def prose(doc: str) -> str:
    """A docstring as Markdown: its lists of arguments as lists."""
    lines: list[str] = []
    section = ""
    for line in doc.splitlines():
        head = _SECTION.match(line)
        if head is not None:
            section = head[1]
            lines += [f"*{'Arguments' if section == 'Args' else 'Raises'}*", ""]
        elif section and (argument := _ARGUMENT.match(line)) is not None:
            names = ", ".join(f"`{name}`" for name in argument[1].split(", "))
            lines.append(f"- {names}: {argument[2]}")
        elif section and line.startswith(" " * 8):
            lines.append(f"  {line.strip()}")
        else:
            section = section if not line.strip() else ""
            lines.append(line)
    return "\n".join(lines).strip() + "\n" if lines else ""


def members(cls: type[object]) -> Iterator[tuple[str, str]]:
    """(how it is used, what it is) of a class's public members, inherited ones of ours too."""
    told: dict[str, tuple[str, str]] = {}
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "headway"]
    for base in reversed(ours):
        texts = attributes(base)
        for name in [*inspect.get_annotations(base), *texts, *vars(base)]:
            if name.startswith("_") or name in NOT_TOLD:
                continue
            member = inspect.getattr_static(base, name, None)
            member = getattr(member, "__func__", member)  # of a classmethod or staticmethod
            doc = inspect.getdoc(member) if _is_ours(member) else None
            shown = name
            if inspect.isfunction(member):
                shown += _bare(member).replace("(self, ", "(").replace("(self)", "()")
                shown = shown.replace("(cls, ", "(").replace("(cls)", "()")
            elif isinstance(member, enum.Enum):
                doc = f'"{member.value}"'
            text = first_sentence(doc or texts.get(name) or _described(cls, name))
            told[name] = (shown, text or told.get(name, ("", ""))[1] or "-")
    yield from told.values()


def _is_ours(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def _described(cls: Any, name: str) -> str | None:
    """Of a field of a document, which carries its text along."""
    fields: Mapping[str, Any] = getattr(cls, "model_fields", {})
    return fields[name].description if name in fields else None


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text())


def attributes(cls: type[object]) -> dict[str, str]:
    """name -> the text below its assignment, in the class or in its `__init__`."""
    tree = _parsed(inspect.getsourcefile(cls) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            found = _texts(node.body)
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    found |= _texts(method.body)
            return found
    return {}


def constants(module: ModuleType) -> dict[str, str]:
    """name -> the text below its assignment, wherever the module has it from."""
    found: dict[str, str] = {}
    for name in dir(module):
        part = getattr(module, name)
        if isinstance(part, ModuleType) and part.__name__.startswith(module.__name__):
            found |= _texts(_parsed(part.__file__ or "").body)
    found |= _texts(_parsed(module.__file__ or "").body)
    if module.__name__ == "headway.events":
        found |= _texts(_parsed(import_module("headway.core.model").__file__ or "").body)
    return found


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, below in zip(body, [*body[1:], None], strict=True):
        name = _assigned(statement)
        match below:
            case ast.Expr(value=ast.Constant(value=str() as text)) if name is not None:
                found[name] = textwrap.dedent(text)
            case _:
                pass
    return found


def _assigned(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case (
            ast.AnnAssign(target=ast.Attribute(attr=name))
            | ast.Assign(targets=[ast.Attribute(attr=name)])
        ):
            return name
        case _:
            return None
