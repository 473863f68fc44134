"""`headway policy init`: a first policy from what the environment has keys for."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import headway
from headway.cli import NO, OK, main
from headway.cli.providers import PROVIDERS


@pytest.fixture(autouse=True)
def _bare(monkeypatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_API_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AZURE_OPENAI_AD_TOKEN", raising=False)
    for row in PROVIDERS.values():
        for name in (row.key, row.also):
            if name:
                monkeypatch.delenv(name, raising=False)


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
    assert "GROQ_API_KEY is set; to use it, say --as groq=MODEL" in capsys.readouterr().out
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


def test_a_key_under_its_own_providers_name_will_do(monkeypatch, capsys) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "fw-1")
    assert main(["policy", "init", "--as", "fireworks_ai=m"]) == OK
    [endpoint] = json.loads(capsys.readouterr().out)["endpoints"].values()
    assert endpoint["credential"] == "env:FIREWORKS_API_KEY"


def test_a_provider_that_the_base_url_names_is_there_once(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://openrouter.ai/api/v1")
    monkeypatch.setenv("OPENROUTER_API_KEY", "or-1")
    assert main(["policy", "init", "--json"]) == OK
    said = json.loads(capsys.readouterr().out)
    assert list(said["policy"]["endpoints"]) == ["openai"]
    assert said["not_used"] == {}


def test_calls_are_shared_and_bounded_if_asked_for(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    out = tmp_path / "p.json"
    command = ["policy", "init", "--spread", "--deadline", "30", "--out", str(out)]
    assert main(command) == OK
    said = capsys.readouterr().out
    assert f"{out}: shared by openai and azure" in said
    assert "OPENAI_API_VERSION is not set" in said
    tree = json.loads(out.read_text())
    assert tree["routes"] == [{"weights": {"openai": 1.0, "azure": 1.0}}]
    assert tree["defaults"] == {"deadline": {"total_ms": 30000}}
    assert main(["policy", "check", "--strict", str(out)]) == OK


def test_a_key_for_a_place_that_is_not_named_is_pointed_out(monkeypatch, capsys) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-1")
    assert main(["policy", "init"]) == OK
    said = capsys.readouterr()
    assert "AZURE_OPENAI_ENDPOINT is not" in said.err
    assert list(json.loads(said.out)["endpoints"]) == ["openai"]


# ----------------------------------------------------------------------------- from a client

CLIENTS = """
import openai

plain = openai.OpenAI(api_key="sk-of-the-client", base_url="https://llm.example/v1/")
def made(): return openai.AsyncOpenAI(api_key="sk-of-the-client", base_url="https://a.example")
azure = openai.AzureOpenAI(
    api_key="sk-of-the-client", azure_endpoint="https://acme.openai.azure.com",
    azure_deployment="mini", api_version="2025-04-01-preview",
)
azure_v1 = openai.AsyncAzureOpenAI(
    api_key="sk-of-the-client", base_url="https://acme.openai.azure.com/openai/v1", api_version="preview",
)
class Space:
    inner = plain
def broken(): raise RuntimeError("sk-of-the-client")
number = 7
bedrock = openai.BedrockOpenAI(aws_region="us-east-1", api_key="sk-of-the-client") if hasattr(openai, "BedrockOpenAI") else None
"""


@pytest.fixture
def clients(tmp_path, monkeypatch) -> Iterable[None]:
    (tmp_path / "my_clients.py").write_text(CLIENTS)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("my_clients", None)


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        ("plain", {"base_url": "https://llm.example/v1"}),
        ("Space.inner", {"base_url": "https://llm.example/v1"}),
        ("made", {"base_url": "https://a.example"}),
        (
            "azure",
            {
                "base_url": "https://acme.openai.azure.com",
                "dialect": "azure",
                "api_version": "2025-04-01-preview",
                "model": "mini",
            },
        ),
        (
            "azure_v1",
            {"base_url": "https://acme.openai.azure.com/openai/v1", "dialect": "azure"},
        ),
    ],
)
def test_a_clients_own_endpoint_comes_first(name, endpoint, clients, capsys, tmp_path) -> None:
    out = tmp_path / "p.json"
    assert main(["policy", "init", "--from", f"my_clients:{name}", "--out", str(out)]) == OK
    assert "sk-of-the-client" not in out.read_text() + str(capsys.readouterr())
    tree = json.loads(out.read_text())
    assert tree["endpoints"] == {"client": endpoint}
    assert main(["policy", "check", "--strict", str(out)]) == OK


def test_the_environment_stands_behind_a_client_unless_it_is_the_same_place(
    clients, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    assert main(["policy", "init", "--from", "my_clients:azure"]) == OK
    tree = json.loads(capsys.readouterr().out)
    assert list(tree["endpoints"]) == ["client", "openai"]
    assert tree["routes"][0]["fallback"] == [{"endpoint": "openai"}]


def test_a_client_that_signs_is_named_as_one_to_declare(clients, capsys) -> None:
    from importlib import import_module

    sys.path.insert(0, str(Path.cwd()))
    if import_module("my_clients").bedrock is None:
        pytest.skip("this openai has no client that signs")
    assert main(["policy", "init", "--from", "my_clients:bedrock"]) == OK
    said = capsys.readouterr()
    assert json.loads(said.out)["endpoints"]["client"]["credential"] == "client"
    assert 'Router(clients={"client": bedrock})' in said.err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("my_clients", "expected MODULE:CLIENT"),
        ("no_such_module:client", "No module named"),
        ("my_clients:nothing", "nothing"),
        ("my_clients:number", "expected an OpenAI or AsyncOpenAI client, not int"),
        ("my_clients:broken", "RuntimeError"),
    ],
)
def test_what_is_no_client_is_one_line(place, said, clients, capsys) -> None:
    assert main(["policy", "init", "--from", place]) == NO
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert "sk-of-the-client" not in err


# ----------------------------------------------------------------------------- on a terminal


def answering(monkeypatch, answers: list[str]) -> list[str]:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        if not answers:
            raise EOFError
        return answers.pop(0)

    monkeypatch.setattr("headway.cli.init_asking.is_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    return asked


def test_questions_are_asked_about_what_was_found(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("GROQ_API_KEY", "gsk-1")
    answers = ["maybe", "y", "llama", "yes", "chat-large, chat-small", "soon", "20", "mine.json"]
    asked = answering(monkeypatch, answers)
    assert main(["policy", "init"]) == OK
    assert answers == []
    assert "openai at https://api.openai.com/v1: use it? [Y/n] " in asked
    assert json.loads(Path("mine.json").read_text()) == {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {
            "openai": {"base_url": "https://api.openai.com/v1", "credential": "env:OPENAI_API_KEY"},
            "groq": {
                "base_url": "https://api.groq.com/openai/v1",
                "credential": "env:GROQ_API_KEY",
                "model": "llama",
            },
        },
        "routes": [
            {"match": {"model": ["chat-large", "chat-small"]}, "weights": {"openai": 1, "groq": 1}}
        ],
        "defaults": {"deadline": {"total_ms": 20000}},
    }
    assert "mine.json: shared by openai and groq" in capsys.readouterr().out
    assert main(["policy", "check", "--strict", "mine.json"]) == OK


def test_enter_takes_the_defaults_and_so_does_the_end_of_input(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    answering(monkeypatch, [])
    assert main(["policy", "init"]) == OK
    asked_for = json.loads(Path("policy.json").read_text())
    Path("policy.json").unlink()
    assert main(["policy", "init", "--yes", "--out", "policy.json"]) == OK
    assert json.loads(Path("policy.json").read_text()) == asked_for


def test_an_endpoint_can_be_left_out(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://acme.openai.azure.com")
    answering(monkeypatch, ["n", "y", "", "", "-"])
    assert main(["policy", "init", "--as", "openai=m"]) == OK
    said = capsys.readouterr().out
    assert list(json.loads(said)["endpoints"]) == ["azure"]


def test_where_nothing_is_found_an_endpoint_is_asked_for(monkeypatch, capsys) -> None:
    answering(monkeypatch, ["https://own.example/v1/", "OWN_KEY", "", "", "", "-"])
    assert main(["policy", "init"]) == OK
    assert json.loads(capsys.readouterr().out)["endpoints"] == {
        "own": {"base_url": "https://own.example/v1", "credential": "env:OWN_KEY"}
    }
    answering(monkeypatch, [""])
    assert main(["policy", "init"]) == NO


def test_a_terminal_is_asked(tmp_path) -> None:
    """Once with a terminal that is one; everywhere else stdout is none, and nothing is asked."""
    source = str(Path(headway.__file__).parents[1])
    environ = {**os.environ, "OPENAI_API_KEY": "sk-1", "PYTHONPATH": source}
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n\n\nasked.json\n")
    done = subprocess.run(
        [sys.executable, "-m", "headway", "policy", "init"],
        env=environ,
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=60,
    )
    said = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert done.returncode == OK, said
    assert "use it? [Y/n]" in said
    assert (tmp_path / "asked.json").exists()
