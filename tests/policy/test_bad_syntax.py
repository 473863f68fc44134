"""What is wrong before fields have names: size, encoding, syntax, duplicates, numbers, depth."""

from __future__ import annotations

import pytest

from headway.errors import ValidationError
from headway.policy.parse import DOCUMENT_BYTES_MAX
from tests.policy.samples import SOUND, compiled, encoded

SYNTAX: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "$", "line 1, column 1"),
    "not an object": (b"[1]", "$", "got a list (expected an object)"),
    "cut off": (b'{"version": 1,\n "end', "$", "line 2, column 2"),
    "not UTF-8": (b'{"version": "\xff"}', "$", "byte 13 is not UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "$", "not UTF-8"),
    "duplicate key": (b'{"version": 1, "version": 2}', "version", "occurs twice"),
    "duplicate key below": (
        b'{"endpoints": {"a": {"zone": "x", "zone": "y"}}}',
        "endpoints.a.zone",
        "occurs twice",
    ),
    "NaN": (b'{"routes": [{"weights": {"a": NaN}}]}', "routes[0].weights.a", "got NaN"),
    "Infinity": (b'{"version": Infinity}', "version", "got Infinity"),
    "-Infinity": (b'{"version": -Infinity}', "version", "got -Infinity"),
    "overflowing number": (b'{"version": 1e999}', "version", "got inf"),
    "huge integer": (b'{"version": ' + b"9" * 30 + b"}", "version", "too large a number"),
    "endless integer": (b'{"version": ' + b"9" * 5000 + b"}", "$", "thousands of digits"),
    "lone surrogate": (b'{"policy_id": "\\ud800"}', "policy_id", "lone surrogate"),
    "lone surrogate as a key": (b'{"\\ud800": 1}', "$", "lone surrogate"),
    "deep lists": (b'{"extensions":' + b"[" * 40 + b"]" * 40 + b"}", "extensions[0][0][0]", "deep"),
    "very deep lists": (b"[" * 500_000, "$", "nested too deeply"),
    "two MiB": (b'{"x": "' + b"a" * 2 * 1024 * 1024 + b'"}', "$", "at most 1048576 bytes"),
}


@pytest.mark.parametrize("case", SYNTAX)
def test_refuses_what_is_wrong_before_fields_have_names(case: str) -> None:
    content, path, words = SYNTAX[case]

    with pytest.raises(ValidationError) as caught:
        compiled(content)

    assert caught.value.path == path
    assert words in str(caught.value)


def test_the_size_limit_is_exact() -> None:
    content = encoded(SOUND)
    fits = content + b" " * (DOCUMENT_BYTES_MAX - len(content))

    assert compiled(fits).version == 7
    with pytest.raises(ValidationError, match="1048577 bytes"):
        compiled(fits + b" ")
