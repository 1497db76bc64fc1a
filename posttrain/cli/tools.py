"""`posttrain tools import`: tools of others into the catalogue that agents choose from."""

import shlex
from pathlib import Path
from typing import Any

from posttrain.cli.command import Commands, add_command, add_commands

KINDS = ("bfcl", "openapi", "schemas", "mcp", "world")


def add_tools(commands: Commands) -> None:
    tools = add_commands(commands, "tools", "The catalogue of tools in data/tools: import into it")
    command = add_command(tools, "import", import_tools)
    command.add_argument("kind", choices=KINDS, help="what SOURCE is")
    command.add_argument(
        "source",
        help="a folder of BFCL's files, an OpenAPI 3 file, a file of schemas, the URL or the command of an MCP "
        "server, or a world's type",
    )
    command.add_argument("--to", dest="folder", type=Path, help="the catalogue's folder; data/tools by default")


def import_tools(kind: str, source: str, folder: Path | None) -> None:
    """Add tools, and questions where the source has some, to a catalogue. Of two tools with one
    name the one that was there stands."""
    from posttrain.retrieval.catalogue import TOOLS, read_catalogue, write_catalogue

    target = folder or TOOLS
    before = read_catalogue(target)
    tools, questions = _read(kind, source)
    after = before.with_more(tools, questions)
    write_catalogue(after, target)
    num_new, num_asked = len(after.tools) - len(before.tools), len(after.questions) - len(before.questions)
    print(
        f"{target}: {num_new} tools and {num_asked} questions are new, {len(tools) - num_new} tools were there by "
        f"name; it has {len(after.tools)} tools and {len(after.questions)} questions"
    )


def _read(kind: str, source: str) -> tuple[Any, Any]:
    from posttrain.config.named_world import domain_of, section_of
    from posttrain.retrieval import sources
    from posttrain.retrieval.catalogue import of_world
    from posttrain.worlds.mcp import McpServer

    match kind:
        case "bfcl":
            read = sources.read_bfcl(Path(source))
            return read.tools, read.questions
        case "openapi":
            return sources.read_openapi(Path(source)), ()
        case "schemas":
            return sources.read_schema_file(Path(source)), ()
        case "mcp":
            is_url = source.startswith(("http://", "https://"))
            server = McpServer(url=source) if is_url else McpServer(command=tuple(shlex.split(source)))
            return of_world(server.tools(), "mcp"), ()
    return of_world(domain_of(section_of(source, None)).tools, f"world/{source}"), ()
