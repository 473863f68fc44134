"""`headway policy init`: a first policy from what the environment has keys for."""

from __future__ import annotations

import json

import pytest

from headway.cli import NO, OK, main
from headway.cli.providers import PROVIDERS


@pytest.fixture(autouse=True)
def _bare(monkeypatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for row in PROVIDERS.values():
        if row.key:
            monkeypatch.delenv(row.key, raising=False)


def test_without_anything_it_says_what_it_looked_for(capsys) -> None:
    assert main(["policy", "init"]) == NO
    assert "OPENAI_API_KEY" in capsys.readouterr().err


def test_the_first_is_openai_and_azure_takes_over(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com/")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-secret")
    monkeypatch.setenv("OPENAI_API_VERSION", "2025-04-01-preview")
    out = tmp_path / "policy.json"

    assert main(["policy", "init", "--model", "gpt-4o", "--out", str(out)]) == OK
    said = capsys.readouterr().out
    assert said == f"{out}: first openai, then azure\n"
    assert "secret" not in out.read_text()
    assert json.loads(out.read_text()) == {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {
            "openai": {
                "base_url": "https://api.openai.com/v1",
                "credential": "env:OPENAI_API_KEY",
            },
            "azure": {
                "base_url": "https://acme.openai.azure.com",
                "dialect": "azure",
                "api_version": "2025-04-01-preview",
                "credential": "env:AZURE_OPENAI_API_KEY",
            },
        },
        "routes": [
            {
                "match": {"model": ["gpt-4o"]},
                "weights": {"openai": 1.0},
                "fallback": [{"endpoint": "azure"}],
            }
        ],
    }
    assert main(["policy", "check", "--strict", str(out)]) == OK
    assert main(["policy", "init", "--out", str(out)]) == NO
    assert f"{out}: " in capsys.readouterr().err


def test_another_provider_needs_a_model_to_be_asked_for(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("GROQ_API_KEY", "gsk-1")

    assert main(["policy", "init", "--out", str(tmp_path / "a.json")]) == OK
    assert "GROQ_API_KEY is set; to fall back to it, say --as groq=MODEL" in capsys.readouterr().out
    assert main(["policy", "init", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["not_used"] == {"groq": "GROQ_API_KEY"}
    assert main(["policy", "init", "--as", "groq=llama"]) == OK
    tree = json.loads(capsys.readouterr().out)
    assert tree["endpoints"]["groq"]["model"] == "llama"
    assert tree["routes"][0]["fallback"] == [{"endpoint": "groq"}]


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--as", "groq"], "ENDPOINT=MODEL"), (["--as", "x=m"], "openai")]
)
def test_a_name_that_means_nothing_is_refused(arguments, said, monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert main(["policy", "init", *arguments]) == NO
    assert said in capsys.readouterr().err


def test_plain_http_has_to_be_allowed(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://10.0.0.1:8000/v1")
    assert main(["policy", "init"]) == NO
    assert "allowed_hosts" in capsys.readouterr().err
    assert main(["policy", "init", "--allow-host", "http://10.0.0.0/8"]) == OK
