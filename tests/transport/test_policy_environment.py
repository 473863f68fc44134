"""Without code: who has to sign the policy is said where the policy is named, in the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

import headway
from headway.policy.http_source import HttpSource
from headway.policy.signing import keygen, sign, signature_file

ONE: dict[str, Any] = {
    "schema_version": "1.0",
    "version": 1,
    "endpoints": {"a": {"base_url": "http://127.0.0.1:1/v1"}},
    "routes": [{"weights": {"a": 1}}],
}


@pytest.fixture
def client() -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://127.0.0.1:1/v1")


def test_keys_of_the_environment_count_for_its_policy(
    client: openai.OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = keygen("ops")
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(ONE))
    monkeypatch.setenv("HEADWAY_POLICY", str(path))
    monkeypatch.setenv("HEADWAY_POLICY_KEYS", f"ops={ops.public}")
    with pytest.raises(headway.VerifyError, match="is not signed"):
        headway.wrap(client)
    signed = signature_file([sign(path.read_bytes(), ops.private, key_id="ops")])
    (tmp_path / "policy.json.sig").write_bytes(signed)

    headway.wrap(client)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(ONE))
    headway.wrap(client, policy=str(other))  # named in code, where keys would be, too


def test_the_environment_can_accept_its_policy_unsigned(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(self: HttpSource, etag: str | None) -> Any:
        raise OSError("down")

    monkeypatch.setattr(HttpSource, "read", down)
    monkeypatch.setenv("HEADWAY_POLICY", "https://config.invalid/policy.json")
    with pytest.raises(headway.VerifyError, match="allow_unsigned"):
        headway.wrap(client)
    monkeypatch.setenv("HEADWAY_POLICY_UNSIGNED", "1")
    with pytest.raises(headway.FetchError, match="down"):
        headway.wrap(client)


def test_an_error_names_the_variable_that_the_policy_is_from(
    client: openai.OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "policy.json"
    broken.write_text(json.dumps({**ONE, "version": "one"}))
    monkeypatch.setenv("HEADWAY_POLICY", str(broken))
    with pytest.raises(
        headway.ValidationError, match=r"version: .*named by HEADWAY_POLICY"
    ) as found:
        headway.wrap(client)
    assert found.value.path == "version"
    with pytest.raises(headway.ValidationError) as found:
        headway.wrap(client, policy=str(broken))
    assert "HEADWAY_POLICY" not in str(found.value)

    monkeypatch.setenv("HEADWAY_POLICY", str(tmp_path / "nowhere.json"))
    with pytest.raises(headway.PolicyError, match=r"nowhere\.json.*named by HEADWAY_POLICY"):
        headway.wrap(client)
    monkeypatch.setenv("HEADWAY_POLICY_KEYS", "ops=no-key;two")
    with pytest.raises(ValueError, match=r"^HEADWAY_POLICY_KEYS: "):
        headway.wrap(client)
