"""The JSON Schema of policy documents, made from the models.

python -m headway.policy.schema > docs/reference/policy.schema.json
"""

from __future__ import annotations

import json
import sys

from pydantic import JsonValue
from pydantic.json_schema import GenerateJsonSchema

from headway.policy.models import Policy


def json_schema() -> dict[str, JsonValue]:
    """JSON Schema (draft 2020-12) of a policy document."""
    schema: dict[str, JsonValue] = Policy.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **schema,
        "title": "Headway policy document, version 1.0",
        "description": "Which endpoints calls go to, in what shares, and within what limits.",
    }


def schema_text() -> str:
    """The schema as it is published."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
