"""Instructor: typed answers, plain and async; partial ones as they stream; with its own re-asks."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from pydantic import BaseModel, field_validator

from tests.frameworks.answers import QUESTION

ASKED: Any = {"model": "chat-large", "messages": [{"role": "user", "content": QUESTION}]}
_refusals = {"left": 0}


class Sum(BaseModel):
    total: int


class Checked(BaseModel):
    total: int

    @field_validator("total")
    @classmethod
    def _refuse_once(cls, value: int) -> int:
        if _refusals["left"]:
            _refusals["left"] -= 1
            raise ValueError("look again")
        return value


def sync(names: dict[str, Any]) -> str:
    return str(names["instructor_sync"].create(response_model=Sum, **ASKED).total)


async def in_async(names: dict[str, Any]) -> str:
    return str((await names["instructor_async"].create(response_model=Sum, **ASKED)).total)


def asked_again(names: dict[str, Any]) -> str:
    _refusals["left"] = 1
    return str(names["instructor_sync"].create(response_model=Checked, **ASKED).total)


def partial(names: dict[str, Any]) -> str:
    *_, last = names["instructor_sync"].create_partial(response_model=Sum, **ASKED)
    return str(last.total)


async def partial_async(names: dict[str, Any]) -> str:
    answers = names["instructor_async"].create_partial(response_model=Sum, **ASKED)
    return str([answer async for answer in answers][-1].total)


WAYS = {
    "sync": sync,
    "async": in_async,
    "sync with a re-ask": asked_again,
    "sync partial stream": partial,
    "async partial stream": partial_async,
}


def plain() -> dict[str, Any]:
    return {"instructor_sync": instructor.from_openai(openai.OpenAI())}


def ask(names: dict[str, Any]) -> object:
    return names["instructor_sync"].create(response_model=Sum, **ASKED)
