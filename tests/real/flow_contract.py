"""Promises of a run on a real Prefect server and a real backend: it shows why a stage
waits, and cancelled there it leaves no job alive."""

import subprocess
from pathlib import Path

from benchmarks.flow import running_server
from posttrain.dispatch.records import JobRecords
from posttrain.runtime.state import JOBS, STATE_DIR
from tests.conftest import REPOSITORY
from tests.pipeline.graph_contract import GraphContract, calls, hold, nodes
from tests.pipeline.toy import ask, environment_of, start, states
from tests.waiting import wait_until

RUN_S, CANCEL_S = 300, 15


class FlowContract(GraphContract):
    """`settings` names one target with two GPUs."""

    def test_a_run_shows_why_its_stage_waits_and_cancelled_on_the_server_it_leaves_no_job_alive(
        self, root, runs, settings, tmp_path
    ):
        (root / "infra").mkdir(exist_ok=True)
        (root / "infra" / "dispatch.yaml").write_text(settings.model_dump_json())  # which is YAML too
        assert runs.run(nodes(root)["train"], str).state == "completed"
        hold(root).touch()
        home = tmp_path / "prefect"
        with running_server(home) as server:
            process = start(root, environment_of(REPOSITORY, **server), "flows.train_and_evaluate")
            wait_until(lambda: len(calls(root)) == 3, limit_s=RUN_S, what="two stages on two GPUs")
            wait_until(lambda: self.waits_for in waiting(home), limit_s=RUN_S, what="the third that says why it waits")
            url, auth = server["PREFECT_API_URL"], server["PREFECT_API_AUTH_STRING"]
            [run] = ask(url, "flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}, auth=auth)
            ask(
                url, f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}}, auth=auth
            )  # the button of its page
            backend, records = (
                settings.backend(settings.target, root, root / STATE_DIR),
                JobRecords(root / STATE_DIR / JOBS),
            )
            wait_until(
                lambda: all(backend.status(record.handle).is_over for record in records.all()),
                limit_s=CANCEL_S,
                what="the end of its jobs",
            )
            assert not subprocess.run(
                ["pgrep", "-f", str(hold(root))], capture_output=True, text=True, check=False
            ).stdout
            assert process.wait(RUN_S) == 75, process.stdout.read()
            assert ask(url, f"flow_runs/{run['id']}", auth=auth)["state"]["name"] == "Cancelled"
        assert len(records.all()) == 4
        assert len(calls(root)) == 3


def waiting(home: Path) -> str:
    """The messages of waiting tasks on their pages."""
    last = [state for item in "abc" for state in states(home, f"evaluate@{item}")[-1:]]
    return " ".join(message.upper() for name, message in last if name == "Waiting")
