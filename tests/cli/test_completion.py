"""`headway completion`: the scripts, tried in the shells that are there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from headway.cli import COMMANDS, OK, main
from headway.cli.policy import ACTIONS


@pytest.fixture
def script(request, tmp_path, capsys) -> Path:
    assert main(["completion", request.param]) == OK
    path = tmp_path / f"headway.{request.param}"
    path.write_text(capsys.readouterr().out)
    return path


def answer(shell: str, *arguments: str, cwd: Path) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run(
        [shell, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def in_bash(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word, as it asks the function that the script registers."""
    listed = " ".join(f"'{word}'" for word in ("headway", *words))
    ask = f"""
        set -u
        source '{script}'
        registered=$(complete -p headway)
        function=${{registered##*-F }}
        COMP_WORDS=({listed})
        COMP_CWORD={len(words)}
        COMP_LINE="${{COMP_WORDS[*]}}"
        COMP_POINT=${{#COMP_LINE}}
        "${{function%% *}}" headway "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return answer("bash", "--norc", "-c", ask, cwd=script.parent)


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_actions_options_and_files(script) -> None:
    (script.parent / "policy.json").write_text("{}")

    assert set(in_bash(script, "")) >= set(COMMANDS)
    assert in_bash(script, "doc") == ["doctor"]
    assert set(in_bash(script, "policy", "")) >= set(ACTIONS)
    assert in_bash(script, "policy", "expl") == ["explain"]
    assert in_bash(script, "policy", "explain", "--prompt-t") == ["--prompt-tokens"]
    assert in_bash(script, "policy", "import", "sw") == ["switchboard"]
    assert in_bash(script, "policy", "check", "pol") == ["policy.json"]
    assert in_bash(script, "policy", "init", "--out", "pol") == ["policy.json"]


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes_commands_and_options(script) -> None:
    def offered(line: str) -> list[str]:
        ask = f"source '{script}'; complete -C '{line}'"
        lines = answer("fish", "--no-config", "-c", ask, cwd=script.parent)
        return [offer.partition("\t")[0] for offer in lines]

    assert set(offered("headway ")) >= set(COMMANDS)
    assert offered("headway policy expl") == ["explain"]
    assert "--prompt-tokens" in offered("headway policy explain --prompt")


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_takes_the_script(script) -> None:
    assert answer("zsh", "--no-rcs", "-n", str(script), cwd=script.parent) == []
    said = script.read_text()
    assert said.startswith("#compdef headway")
    assert "--prompt-tokens" in said


def test_another_shell_is_wrong_usage(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "cmd"])
    assert "bash" in capsys.readouterr().err
