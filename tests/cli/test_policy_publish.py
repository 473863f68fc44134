"""`headway policy publish`: to a file, an object store, a server; never backwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli import NO, OK, main
from headway.policy.signing import read_signatures
from tests.policy.samples import document, encoded
from tests.policy.shelf import Shelf


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()


@pytest.fixture(params=["file", "store", "http"])
def target(request: pytest.FixtureRequest, tmp_path: Path, shelf: Shelf) -> str:
    made = {"file": f"{tmp_path}/live.json", "store": f"memory://{tmp_path.name}/cli.json"}
    return made.get(request.param, shelf.url)


def version(number: int, tmp_path: Path) -> str:
    path = tmp_path / f"v{number}.json"
    path.write_bytes(encoded(document(version=number)))
    return str(path)


def test_only_what_is_newer_is_put_there(target, tmp_path, capsys) -> None:
    publish = ["policy", "publish"]

    assert main([*publish, version(7, tmp_path), target]) == OK
    assert "version 7 published, nothing was there; not signed" in capsys.readouterr().out
    assert main([*publish, version(8, tmp_path), target, "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert (found["rank"], found["replaced"], found["changed"]) == ([0, 8], [0, 7], True)
    assert main([*publish, version(7, tmp_path), target]) == NO
    refused = capsys.readouterr().err
    assert "is older than" in refused
    assert refused.count("\n") == 1
    assert main([*publish, version(8, tmp_path), target]) == OK
    assert "version 8 was there already" in capsys.readouterr().out


def test_it_is_signed_on_the_way_or_takes_the_signatures_beside_it(tmp_path, capsys) -> None:
    file, key = version(7, tmp_path), f"{tmp_path}/ops.pem"
    live = tmp_path / "live.json"
    main(["policy", "keygen", key])
    main(["policy", "sign", file, "--key", key, "--id", "first"])

    assert main(["policy", "publish", file, str(live), "--key", key, "--id", "second"]) == OK
    assert "signed by first, second" in capsys.readouterr().out
    assert len(read_signatures(Path(f"{live}.sig").read_bytes())) == 2


def test_the_token_comes_from_a_variable_and_is_never_shown(
    shelf, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    file = version(7, tmp_path)
    more = ["--token-env", "TOKEN", "--token-header", "x-token"]

    assert main(["policy", "publish", file, shelf.url, *more]) == OK
    assert shelf.seen[0]["x-token"] == "s3cret"
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err
    assert main(["policy", "publish", file, f"{tmp_path}/live.json", *more]) == NO
    assert "http(s) URL" in capsys.readouterr().err


def test_a_key_never_goes_out_over_plain_http(tmp_path, capsys) -> None:
    assert main(["policy", "publish", version(7, tmp_path), "http://config.example/p.json"]) == NO
    assert "plain http" in capsys.readouterr().err


def test_a_document_that_is_not_sound_stays_here(tmp_path, capsys) -> None:
    file = tmp_path / "bad.json"
    file.write_text("{")
    assert main(["policy", "publish", str(file), f"{tmp_path}/live.json"]) == NO
    assert "line 1" in capsys.readouterr().err
    assert not (tmp_path / "live.json").exists()
