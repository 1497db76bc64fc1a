"""A small DVC repository with our `params.yaml` and our table, whose training can be held up from
outside."""

import base64
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.dvc_trees import init_dvc

BUSY_TRIES = 30  # a second apart

DVC_YAML = """
stages:
  prepare:
    cmd: echo prepare >> '{folder}/calls'; cp evaluate.py prepared
    deps: [evaluate.py]
    outs: [prepared]
  train:
    cmd: >-
      echo train >> '{folder}/calls'; while [ -e '{folder}/hold' ]; do sleep 0.1; done;
      cat params.yaml prepared > model
    deps: [prepared]
    params: [seed, train_policy.lr]
    outs: [model]
  evaluate:
    matrix:
      policy: [teacher, base, sft, policy]
    cmd: python evaluate.py ${{item.policy}}
    deps: [model]
    params: [train_policy.lr]
    metrics:
      - reports/evaluate/${{item.policy}}.json: {{cache: false}}
    outs:
      - reports/evaluate/${{item.policy}}.tasks.jsonl: {{cache: false}}
"""
EVALUATE = """
import json, sys, pathlib, yaml
from tests.report.example import evaluation, task_record
lr = yaml.safe_load(pathlib.Path("params.yaml").read_text())["train_policy"]["lr"]
rate = 0.5 + lr
figures = dict(success_rate=rate, ci_low=0.45, ci_high=0.55, pass_hat_4=0.25)
result = evaluation(0.75) | figures | {f"strict_{name}": figure for name, figure in figures.items()}
result["num_tasks"] = 1000
plays = [task_record(f"t{index}", failure=None if index < 1000 * rate else "wrong_value") for index in range(1000)]
pathlib.Path("reports/evaluate").mkdir(parents=True, exist_ok=True)
pathlib.Path(f"reports/evaluate/{sys.argv[1]}.json").write_text(json.dumps(result))
text = "".join(json.dumps(play) + "\\n" for play in plays)
pathlib.Path(f"reports/evaluate/{sys.argv[1]}.tasks.jsonl").write_text(text)
"""


def make_tree(folder: Path, repository: Path) -> Path:
    """A committed tree at `folder`/tree, with nothing run; its calls are counted in `folder`/calls,
    and training waits while `folder`/hold is there."""
    root = folder / "tree"
    (root / "infra").mkdir(parents=True)
    for command in (
        ["git", "init", "--quiet"],
        ["git", "config", "user.name", "a"],
        ["git", "config", "user.email", "a@b"],
    ):
        subprocess.run(command, cwd=root, check=True)
    init_dvc(root)
    for name in ("flows", "prefect.yaml", "infra/prefect"):  # as in a checkout
        (root / name).symlink_to(repository / name)
    (root / "params.yaml").write_bytes((repository / "params.yaml").read_bytes())
    (root / "dvc.yaml").write_text(DVC_YAML.format(folder=folder))
    (root / "evaluate.py").write_text(EVALUATE)
    (root / ".gitignore").write_text("/.posttrain/\n")
    commit(root, "start")
    return root


def commit(root: Path, message: str) -> None:
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", message], cwd=root, check=True)


def set_lr(root: Path, lr: str) -> None:
    """The policy's."""
    text = (root / "params.yaml").read_text(encoding="utf-8")
    (root / "params.yaml").write_text(re.sub(r"lr: \S+(?= +# on dev)", f"lr: {lr}", text), encoding="utf-8")


def environment_of(repository: Path, **added: str) -> dict[str, str]:
    """For flows in a toy tree: our code, and nothing of a Prefect that the person who tests may
    have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    path = os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **added}


def start(root: Path, environment: dict[str, str], *module_and_arguments: str) -> subprocess.Popen[str]:
    """`python -m …` in the tree."""
    return subprocess.Popen(
        # A shell starts its background jobs deaf to SIGINT, and they hand that on; a person's
        # terminal does not.
        ["env", "--default-signal=INT", sys.executable, "-m", *module_and_arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(root: Path, environment: dict[str, str], *module_and_arguments: str) -> tuple[int, str]:
    process = start(root, environment, *module_and_arguments)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def calls(root: Path) -> list[str]:
    """The stages that have run, in their order."""
    path = root.parent / "calls"
    return path.read_text().split() if path.exists() else []


def jobs(root: Path, stage: str) -> list[dict[str, Any]]:
    """The records of all attempts at a stage, the first one first."""
    path = root / ".posttrain" / "jobs.db"
    if not path.exists():
        return []
    with sqlite3.connect(path) as database:
        database.row_factory = sqlite3.Row
        return [
            dict(row) for row in database.execute("select * from jobs where stage = ? order by submitted_at", (stage,))
        ]


def artifact(home: Path, key: str) -> Any:
    """The newest of that key, from the server's own database."""
    with sqlite3.connect(home / "prefect.db") as database:
        [data] = database.execute(
            "select data from artifact where key = ? order by created desc limit 1", (key,)
        ).fetchone()
    return json.loads(str(data))


def ask(api_url: str, path: str, content: Any = None, *, auth: str = "", **headers: str) -> Any:
    """Answer of a Prefect server to a client with its auth string; with `content`, to a POST of it.
    A server whose database is busy (503) is asked again, as Prefect's own client does.
    Raises urllib.error.HTTPError."""
    data = None if content is None else json.dumps(content).encode()
    known = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"} if auth else {}
    request = urllib.request.Request(
        f"{api_url}/{path}", data=data, headers={"Content-Type": "application/json", **known, **headers}
    )
    tries_left = BUSY_TRIES
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            tries_left -= 1
            if error.code != 503 or not tries_left:
                raise
            time.sleep(1)


def states(home: Path, task: str) -> list[tuple[str, str]]:
    """Every state that the newest run of a task has had, with its message."""
    with sqlite3.connect(home / "prefect.db") as database:
        return database.execute(
            "select s.name, s.message from task_run_state s where s.task_run_id = "
            "(select id from task_run where name = ? order by created desc limit 1) order by s.timestamp",
            (task,),
        ).fetchall()
