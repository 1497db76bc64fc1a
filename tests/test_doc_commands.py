"""Every command that README and docs name is one that there is: its program, module, target,
subcommand and options, and the files in the repository that it takes."""

import functools
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from posttrain.cli.main import make_parser

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
STARTS = ("posttrain ", "python -m ", "make ", "infra/", ".ci/")
OF_TOOLS = ("dvc ", "docker ", "inspect ", "kubectl ", "lm-eval ", "prefect ", "vf-eval ", "wandb ")
OTHERS = (*OF_TOOLS, "export ", "git ", "pip ", "sinfo", "ln ", "python exported/", "source ")
parser = functools.cache(make_parser)  # it takes the time of many a command
SETTING = re.compile(r"^[A-Z_]+=\S+ ")


def commands() -> list[str]:
    """`PAGE: COMMAND`, from the blocks of shell and from what stands in the text as code."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        lines += [code for code in re.findall(r"`([^`\n]+)`", prose) if code.startswith(STARTS) and " " in code]
        for line in filter(str.strip, lines):
            command = line
            while SETTING.match(command):
                command = SETTING.sub("", command)
            found.append(f"{page.relative_to(REPOSITORY)}: {command}")
    return sorted(set(found))


def test_each_kind_of_command_is_found():
    found = [command.partition(": ")[2] for command in commands()]
    assert all(any(command.startswith(start) for command in found) for start in (*STARTS[:4], "dvc "))


@pytest.mark.parametrize("named", commands())
def test_a_command_that_is_named_is_there(named: str):
    words = shlex.split(named.partition(": ")[2], comments=True)
    match words:
        case ["posttrain", command]:  # its name alone, with or without what it needs
            with pytest.raises(SystemExit, match=r"^0$"):
                parser().parse_args([command, "--help"])
        case ["posttrain", *arguments]:
            assert parser().parse_args(arguments).command
        case ["python", "-m", module, *arguments]:
            assert importlib.util.find_spec(module), module
            assert all((REPOSITORY / one).exists() for one in arguments if one.startswith("infra/"))
        case ["make", target, *variables]:
            makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{re.escape(target)}:.*## ", makefile, re.MULTILINE)
            assert all(re.search(rf"\b{variable.partition('=')[0]}\b", makefile) for variable in variables)
        case [program, *_] if program.startswith(("infra/", ".ci/")):
            assert (REPOSITORY / program).exists()
        case _:
            assert " ".join(words).startswith(OTHERS), "a program that no rule here knows"
            files = re.findall(r"\binfra/[\w./-]+", " ".join(words))
            assert [file for file in files if not (REPOSITORY / file).exists()] == []
