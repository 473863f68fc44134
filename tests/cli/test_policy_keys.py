"""`headway policy keygen`, `sign`, `verify`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from headway.cli import MISSING_EXTRA, NO, OK, main

DOCUMENT = {
    "schema_version": "1.0",
    "version": 1,
    "endpoints": {"a": {"base_url": "https://a.example/v1"}},
    "routes": [{"weights": {"a": 1}}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(DOCUMENT))
    return path


def new_key(path: Path, name: str, capsys, *more: str) -> str:
    assert main(["policy", "keygen", str(path), "--id", name, "--json", *more]) == OK
    made = json.loads(capsys.readouterr().out)
    return f"{made['key_id']}={made['public_key']}"


def test_a_key_is_for_its_owner_alone_and_never_overwritten(tmp_path, capsys) -> None:
    key = tmp_path / "ops.pem"
    assert main(["policy", "keygen", str(key), "--id", "ops"]) == OK
    said = capsys.readouterr().out
    first = key.read_bytes()

    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "public key:  ops=" in said
    assert "PRIVATE" not in said
    assert main(["policy", "keygen", str(key)]) == NO
    assert capsys.readouterr().err.startswith(f"{key}: ")
    assert key.read_bytes() == first


def test_what_was_signed_is_verified(file, tmp_path, capsys) -> None:
    public = new_key(tmp_path / "ops.pem", "ops", capsys)

    assert main(["policy", "verify", str(file), "--public-key", public]) == NO
    assert "is not signed" in capsys.readouterr().err
    assert main(["policy", "sign", str(file), "--key", f"{tmp_path}/ops.pem", "--id", "ops"]) == OK
    assert "signed by ops" in capsys.readouterr().out
    assert main(["policy", "verify", str(file), "--public-key", public]) == OK
    assert capsys.readouterr().out == f"{file}: signed by ops\n"

    file.write_bytes(file.read_bytes() + b"\n")
    assert main(["policy", "verify", str(file), "--public-key", public, "--json"]) == NO
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_signatures_add_up_to_a_threshold(file, tmp_path, capsys) -> None:
    keys = [new_key(tmp_path / f"{name}.pem", name, capsys) for name in ("a", "b")]
    wanted = [part for key in keys for part in ("--public-key", key)]
    ask = ["policy", "verify", str(file), *wanted, "--threshold", "2"]

    main(["policy", "sign", str(file), "--key", f"{tmp_path}/a.pem", "--id", "a"])
    assert main(ask) == NO
    main(["policy", "sign", str(file), "--key", f"{tmp_path}/b.pem", "--id", "b"])
    assert main(ask) == OK
    assert capsys.readouterr().out.splitlines()[-1] == f"{file}: signed by a, b"


def test_the_keys_may_come_from_the_variable_that_programs_read(
    file, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.delenv("HEADWAY_POLICY_KEYS", raising=False)
    assert main(["policy", "verify", str(file)]) == NO
    assert "HEADWAY_POLICY_KEYS" in capsys.readouterr().err

    monkeypatch.setenv("HEADWAY_POLICY_KEYS", new_key(tmp_path / "ops.pem", "ops", capsys))
    main(["policy", "sign", str(file), "--key", f"{tmp_path}/ops.pem"])
    assert main(["policy", "verify", str(file)]) == OK


def test_a_password_comes_from_a_variable(file, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PASSWORD", "correct horse")
    key = tmp_path / "ops.pem"
    new_key(key, "ops", capsys, "--password-env", "PASSWORD")
    sign = ["policy", "sign", str(file), "--key", str(key)]

    assert b"ENCRYPTED" in key.read_bytes()
    assert main(sign) == NO
    assert "password" in capsys.readouterr().err
    assert main([*sign, "--password-env", "PASSWORD"]) == OK
    assert main([*sign, "--password-env", "UNSET"]) == NO
    assert "UNSET is not set" in capsys.readouterr().err


def test_what_no_client_would_take_is_not_signed(file, tmp_path, capsys) -> None:
    new_key(tmp_path / "ops.pem", "ops", capsys)
    file.write_text(json.dumps({**DOCUMENT, "endpoint": {}}))

    assert main(["policy", "sign", str(file), "--key", f"{tmp_path}/ops.pem"]) == NO
    said = capsys.readouterr().err
    assert said.startswith(f"{file}: endpoint: unknown field")
    assert '"endpoints", perhaps' in said
    assert not Path(f"{file}.sig").exists()


def test_without_cryptography_the_extra_is_named(file, capsys, monkeypatch) -> None:
    monkeypatch.setattr("headway.cli.policy.find_spec", lambda name: None)

    assert main(["policy", "verify", str(file)]) == MISSING_EXTRA
    assert "pip install 'headway[signing]'" in capsys.readouterr().err
