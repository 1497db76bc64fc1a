"""The flow on a small DVC repository and a real temporary server: states, artifacts, exit codes,
and nothing left running."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from typing import Any

import psutil
import pytest

from posttrain.pipeline.executor import NodeOutcome
from posttrain.pipeline.graph import StageNode
from posttrain.pipeline.run_status import RunStatus, stages_markdown
from tests.dvc_trees import init_dvc
from tests.pipeline.toy import ask, environment_of, run, start

DVC_YAML = """
stages:
  train:
    desc: makes a model
    cmd: echo loss 0.5; echo 1 > model
    params: [seed]
    outs: [model]
  evaluate:
    matrix:
      policy: [teacher, base, sft, policy]
    cmd: python evaluate.py ${item.policy}
    deps: [model, evaluate.py]
    params: [quality]
    metrics:
      - reports/evaluate/${item.policy}.json: {cache: false}
  report:
    cmd: cat reports/evaluate/*.json > reports/index.html
    deps: [reports/evaluate/sft.json, reports/evaluate/policy.json]
    outs: [reports/index.html]
"""
EVALUATE = """
import json, sys, pathlib
from tests.report.example import evaluation
quality = float(pathlib.Path("params.yaml").read_text().split("quality:")[1])
if quality > 1 and sys.argv[1] == "sft":
    print(f"quality = {quality}: a share above 1 means nothing; set it to 1 at most")
    sys.exit(78)
figures = dict(success_rate=min(quality, 1), ci_low=0.5, ci_high=1.0, pass_hat_4=0.25)
result = evaluation(0.75) | figures | {f"strict_{name}": figure for name, figure in figures.items()}
pathlib.Path("reports/evaluate").mkdir(parents=True, exist_ok=True)
pathlib.Path(f"reports/evaluate/{sys.argv[1]}.json").write_text(json.dumps(result))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    init_dvc(folder)
    (folder / ".gitignore").write_text("/.posttrain/\n/pid\n")
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "evaluate.py").write_text(EVALUATE)
    (folder / "params.yaml").write_text("seed: 1\nquality: 0.75\n")
    return folder


def start_flow(root: Path, repository: Path) -> subprocess.Popen[str]:
    return start(
        root, environment_of(repository, PREFECT_HOME=str(root.parent / "prefect")), "flows.train_and_evaluate"
    )


def run_flow(root: Path, repository: Path) -> tuple[int, str]:
    return run(root, environment_of(repository, PREFECT_HOME=str(root.parent / "prefect")), "flows.train_and_evaluate")


def final_states(root: Path) -> dict[str, tuple[str, str]]:
    """State name and message of every task of the newest run, from the server's own database."""
    with sqlite3.connect(root.parent / "prefect" / "prefect.db") as database:
        rows = database.execute(
            "select task_run.name, task_run.state_name, task_run_state.message "
            "from task_run join task_run_state on task_run.state_id = task_run_state.id "
            "where flow_run_id = (select id from flow_run order by created desc limit 1)"
        ).fetchall()
    return {name: (state, message or "") for name, state, message in rows}


def artifacts(root: Path) -> dict[str, Any]:
    with sqlite3.connect(root.parent / "prefect" / "prefect.db") as database:
        return {
            key: json.loads(str(text))
            for key, text in database.execute("select key, data from artifact order by created").fetchall()
        }


def address_of(process: subprocess.Popen[str]) -> str:
    """Address of its server, from its output."""
    for line in process.stdout:
        if found := re.search(r"http://[\d.]+:\d+", line):
            return found[0]
    raise AssertionError("it names no server")


def is_server_alive(output: str) -> bool:
    address, port = re.search(r"http://([\d.]+):(\d+)", output).groups()
    assert address == "127.0.0.1"
    with socket.socket() as probe:
        return probe.connect_ex((address, int(port))) == 0


def is_process_alive(pid: str) -> bool:
    """A dead process whose new parent has not collected it yet (state Z) is dead; one that closes
    its files is given a moment."""
    for _ in range(100):
        try:
            if Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.1)
    return True


@pytest.mark.needs_prefect
def test_a_run_has_a_task_per_stage_and_item_and_a_second_run_finds_them_cached(root, repository):
    exit_code, output = run_flow(root, repository)
    assert exit_code == 0, output
    assert "Task run 'train' - loss 0.5" in output
    names = ["train", "evaluate@teacher", "evaluate@base", "evaluate@sft", "evaluate@policy", "report"]
    assert {name: state for name, (state, _) in final_states(root).items()} == dict.fromkeys(names, "Completed")
    assert "| policy | 75.0 % | 50.0 … 100.0 % | 25.0 % | 75.0 % | 25.0 % | 40 |" in artifacts(root)["evaluation"]
    assert not is_server_alive(output)

    exit_code, output = run_flow(root, repository)
    assert exit_code == 0, output
    assert {name: state for name, (state, _) in final_states(root).items()} == dict.fromkeys(names, "Cached")
    files = "`reports/evaluate/sft.json`, `reports/evaluate/policy.json` → `reports/index.html`"
    assert re.search(rf"\| report \| cached \| [\d.]+ \| +\| +\| {files} \|", artifacts(root)["stages"])


@pytest.mark.needs_prefect
def test_a_failing_stage_ends_the_run_with_its_exit_code_its_cause_and_its_last_lines(root, repository):
    (root / "params.yaml").write_text("seed: 1\nquality: 1.5\n")
    exit_code, output = run_flow(root, repository)
    assert exit_code == 78
    states = final_states(root)
    assert states["evaluate@sft"][0] == "Failed"
    assert states["evaluate@sft"][1].startswith("exit code 78 (wrong configuration")
    assert "a share above 1 means nothing" in states["evaluate@sft"][1]
    assert states["evaluate@policy"][0] == "Completed"  # it does not need the one that failed
    assert states["report"][0] == "NotReady"
    assert re.search(r"\| report \| not run \| \| \| \| .* → `reports/index.html` \|", artifacts(root)["stages"])
    assert "evaluation" not in artifacts(root)
    assert not is_server_alive(output)


def start_sleeper(root: Path, repository: Path) -> subprocess.Popen[str]:
    """A flow whose stage runs, and has left its number and its environment."""
    left = f"env > '{root}/environment'; echo $$ > '{root}/pid'"
    (root / "dvc.yaml").write_text(f"stages:\n  slow:\n    cmd: {left}; exec sleep 600\n    outs: [never]\n")
    process = start_flow(root, repository)
    while not (root / "pid").exists() or not (root / "pid").read_text().strip():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    return process


@pytest.mark.needs_prefect
@pytest.mark.parametrize(
    ("send", "exit_code"),
    [
        (lambda process: process.terminate(), 143),
        (lambda process: process.send_signal(signal.SIGINT), 130),
        (lambda process: os.killpg(process.pid, signal.SIGINT), 130),  # as a terminal does
    ],
)
def test_a_stopped_run_leaves_neither_its_stage_nor_its_server_alive_and_has_told_it_so(
    root, repository, send, exit_code
):
    process = start_sleeper(root, repository)
    send(process)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == exit_code, output
    assert not is_process_alive((root / "pid").read_text().strip())
    assert not is_server_alive(output)
    assert not re.search(r"Traceback.*(ConnectError|ConnectionRefused)", output, re.DOTALL), output


@pytest.mark.needs_prefect
def test_a_killed_flow_leaves_no_server_alive_and_none_of_its_stages_knows_the_servers_secret(root, repository):
    process = start_sleeper(root, repository)
    started = psutil.Process(process.pid).children(recursive=True)
    [server] = [one for one in started if any(at.status == psutil.CONN_LISTEN for at in one.net_connections())]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(address_of(process) + "/api", "flows/filter", {})
    secret = server.environ()["PREFECT_SERVER_API_AUTH_STRING"]
    job = psutil.Process(int((root / "pid").read_text()))
    assert job in started
    assert not [one for one in started if one != server and secret in one.environ().values()]
    told = (root / "environment").read_text()
    assert secret not in told
    assert "AUTH_STRING" not in told
    for path in root.parent.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    process.kill()
    process.wait()
    assert server.wait(20) is None  # who adopts it is told how it ended
    for one in started:
        if one.is_running():
            one.kill()  # a killed flow's job goes on


def test_a_flow_never_loads_torch_not_even_indirectly(repository):
    modules = ", ".join(f"flows.{path.stem}" for path in (repository / "flows").glob("[!_]*.py"))
    check = (
        f"import sys, {modules}; print([name for name in ('torch', 'transformers', 'trl', "
        "'stages') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", check], cwd=repository, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_prefect_is_told_not_to_report_on_its_users_before_it_is_imported(repository):
    check = (
        "import flows, sys, os; print('prefect' in sys.modules, os.environ['DO_NOT_TRACK'], "
        "os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'])"
    )
    kept = {
        name: value for name, value in os.environ.items() if name != "DO_NOT_TRACK" and not name.startswith("PREFECT_")
    }
    shown = subprocess.run(
        [sys.executable, "-c", check], cwd=repository, env=kept, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["False", "1", "false"]


def test_the_table_of_stages_names_the_cause_of_a_failure_and_what_other_stages_made():
    nodes = [
        StageNode("one", "", "", ("code",), ("model",), (), ()),
        StageNode("two", "", "", ("code", "model"), (), (), ("one",)),
    ]
    nodes.append(StageNode("three", "", "", (), ("a|b",), (), ()))
    outcomes = {
        "one": NodeOutcome("cached", 0.44),
        "two": NodeOutcome("failed", 61.25, "exit code 65 (bad\n| data)", 65, "two-1", "local", 1),
    }
    assert stages_markdown(nodes, outcomes).splitlines()[2:] == [
        "| one | cached | 0.4 |  |  | – → `model` |",
        "| two | failed, preempted 1 time: exit code 65 (bad \\| data) | 61.2 | local | two-1 | `model` → – |",
        "| three | not run | | | | – → `a\\|b` |",
    ]


def test_a_status_knows_what_is_missing_and_counts_what_ran():
    run_status = RunStatus([StageNode(name, "", "", (), (), (), ()) for name in ("one", "two", "three", "four")])
    run_status.outcomes["one"] = NodeOutcome("cached", 0.1)
    run_status.outcomes["two"] = NodeOutcome("completed", 9.0, num_preempted=2)
    assert run_status.missing() == ["three", "four"]
    assert run_status.summary() == "1 of 4 stages ran, preempted 2 times"
