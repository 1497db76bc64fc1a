"""Real server, worker and stages on this machine: deployments, cancelling, a flow that is killed,
the automation, and nothing left running.

One server for all tests of the file; the last one ends it.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from tests.pipeline.toy import artifact, ask, calls, jobs, run, set_lr, start, states
from tests.real.serving import RUN_S, Served, serving
from tests.waiting import wait_until

pytestmark = [pytest.mark.needs_prefect, pytest.mark.xdist_group("prefect")]


@pytest.fixture(scope="module")
def served(tmp_path_factory, repository):
    with serving(tmp_path_factory.mktemp("a folder"), repository) as found:
        yield found


def processes_of(root: Path, what: str) -> list[psutil.Process]:
    """Those that stand in a folder below the tree and have `what` on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.status() != psutil.STATUS_ZOMBIE
                and what in " ".join(process.cmdline())
                and Path(process.cwd()).is_relative_to(root)
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_everything_is_deployed_on_loopback_and_deploying_again_changes_nothing(served):
    def on_server():
        deployments = {one["name"]: one for one in served.ask("deployments/filter", {})}
        pools = {one["name"]: (one["type"], one["concurrency_limit"]) for one in served.ask("work_pools/filter", {})}
        return deployments, pools, [one["name"] for one in served.ask("automations/filter", {})]

    deployments, pools, automations = on_server()
    assert pools == {"posttrain-process": ("process", None), "posttrain-kubernetes": ("kubernetes", 1)}
    assert set(deployments) == {
        f"{name}{kind}" for name in ("", "nightly-", "experiments-", "evolve-") for kind in ("process", "kubernetes")
    }
    [schedule] = deployments["nightly-process"]["schedules"]
    assert (schedule["active"], schedule["schedule"]["timezone"]) == (True, "UTC")
    assert not deployments["nightly-kubernetes"]["schedules"][0]["active"]
    assert automations == ["posttrain-dead-runs"]
    assert str(served.root) not in json.dumps(deployments)  # a worker says where its tree is
    again = subprocess.run(
        [sys.executable, "-m", "flows.deploy"],
        cwd=served.root,
        env=served.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert on_server()[1:] == (pools, automations), again.stdout
    assert set(on_server()[0]) == set(deployments)
    listening = {
        at.laddr.ip
        for process in served.processes
        for at in process.net_connections()
        if at.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_who_does_not_know_the_secret_has_no_command_run(served, tmp_path):
    [deployment] = [one["id"] for one in served.ask("deployments/filter", {}) if one["name"] == "process"]
    asked = {"state": {"type": "SCHEDULED"}, "job_variables": {"command": f"touch '{tmp_path / 'ran'}'"}}

    def attack(**told):
        return ask(served.environment["PREFECT_API_URL"], f"deployments/{deployment}/create_flow_run", asked, **told)

    port = served.environment["PREFECT_API_URL"].removesuffix("/api").rpartition(":")[2]
    for status, told in {
        401: {},
        403: {"auth": served.secret, "Origin": "http://evil.example"},
        400: {"auth": served.secret, "Host": f"evil.example:{port}"},
    }.items():
        with pytest.raises(urllib.error.HTTPError, match=str(status)) as refused:
            attack(**told)
        assert not refused.value.headers["Access-Control-Allow-Origin"]
    assert not [one for one in served.ask("flow_runs/filter", {}) if one["job_variables"]]
    started = attack(auth=served.secret)["id"]  # its owner may: the worker has been looking for runs all the while
    wait_until((tmp_path / "ran").exists, limit_s=RUN_S, what="the command of who knows the secret")
    served.ask(f"flow_runs/{started}/set_state", {"state": {"type": "CANCELLED"}, "force": True})


def test_the_secret_is_its_owners_alone(served):
    assert served.secret not in served.said
    assert 'export PREFECT_API_AUTH_STRING="$(cat .posttrain/prefect/auth)"' in served.said
    for process in psutil.process_iter():
        assert served.secret not in _line(process)
    for path in (served.home, *served.home.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert {"auth", "server.log", "worker.log", "deploy.log", "prefect.db"} <= {
        path.name for path in served.home.iterdir()
    }


def test_a_port_that_is_taken_gets_no_deployments(served, tmp_path):
    port = served.environment["PREFECT_API_URL"].rpartition(":")[2].removesuffix("/api")
    code, said = run(tmp_path, served.environment, "flows.serve", "--port", port)
    assert (code, f"port {port} of 127.0.0.1 cannot be had" in said) == (78, True), said
    assert run(tmp_path, served.environment, "flows.serve", "--port", "99999")[0] == 78


def test_the_next_night_is_scheduled(served):
    asked = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    runs = wait_until(lambda: served.ask("flow_runs/filter", asked), limit_s=RUN_S, what="the schedule")
    [deployment] = {run["deployment_id"] for run in runs}
    assert served.ask(f"deployments/{deployment}")["name"] == "nightly-process"
    assert "Traceback" not in (served.home / "server.log").read_text()


def test_a_cancelled_run_leaves_no_job_alive(served):
    (served.root.parent / "hold").touch()
    run = served.start_run()
    job = served.training(num_before=0)
    served.prefect("flow-run", "cancel", run)
    wait_until(lambda: jobs(served.root, "train")[-1]["ended_at"], limit_s=15, what="the end of the cancelled job")
    wait_until(lambda: not processes_of(served.root, "hold"), limit_s=15, what="the end of its processes")
    assert jobs(served.root, "train")[-1]["name"] == job["name"]
    wait_until(lambda: served.state(run) == "Cancelled", limit_s=RUN_S, what="the cancelled state")
    assert states(served.home, "train")[-1][0] == "Cancelled"


def test_a_run_that_a_person_started_by_hand_is_cancelled_too(served):
    num_before = calls(served.root).count("train")
    process = start(served.root, served.environment, "flows.train_and_evaluate")
    served.training(num_before)
    [run] = served.ask("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    served.prefect("flow-run", "cancel", run["id"])
    wait_until(lambda: jobs(served.root, "train")[-1]["ended_at"], limit_s=15, what="the end of the cancelled job")
    assert process.wait(RUN_S) == 75, process.stdout.read()
    assert not processes_of(served.root, "hold")
    assert served.state(run["id"]) == "Cancelled"


def test_a_killed_runs_job_is_found_by_the_next_run_and_its_result_lands_once(served):
    set_lr(served.root, "2.5e-3")
    (served.root.parent / "hold").touch()
    num_before = calls(served.root).count("train")
    run = served.start_run()
    job = served.training(num_before)
    [engine] = [process for process in psutil.process_iter() if process.pid in _flow_processes(served)]
    engine.kill()
    wait_until(lambda: served.state(run) == "Crashed", limit_s=RUN_S, what="the crashed state")
    next_run = served.start_run()
    wait_until(
        lambda: jobs(served.root, "train")[-1]["owner"] != job["owner"],
        limit_s=RUN_S,
        what="the job that is found again",
    )
    (served.root.parent / "hold").unlink()
    wait_until(lambda: served.state(next_run) == "Completed", limit_s=RUN_S, what="the end of the second run")
    assert calls(served.root).count("train") == num_before + 1
    assert [one["name"] for one in jobs(served.root, "train") if one["key"] == job["key"]] == [job["name"]]
    assert "2.5e-3" in (served.root / "model").read_text()


def test_a_run_whose_whole_side_died_is_marked_crashed_by_the_automation(served):
    set_lr(served.root, "2.6e-3")
    (served.root.parent / "hold").touch()
    num_before = calls(served.root).count("train")
    process = start(served.root, served.environment, "flows.train_and_evaluate")  # no worker looks after this one
    job = served.training(num_before)
    [run] = served.ask("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}})
    process.kill()
    process.wait()
    assert served.state(run["id"]) == "Running"
    found = start(served.root, served.environment, "flows.train_and_evaluate")
    wait_until(
        lambda: jobs(served.root, "train")[-1]["owner"] != job["owner"],
        limit_s=RUN_S,
        what="the job that is found again",
    )
    (served.root.parent / "hold").unlink()
    output, _ = found.communicate(timeout=RUN_S)
    assert (found.returncode, "found again" in output) == (0, True), output
    assert [one["name"] for one in jobs(served.root, "train") if one["key"] == job["key"]] == [job["name"]]
    wait_until(lambda: served.state(run["id"]) == "Crashed", limit_s=240, what="the automation")
    assert "no heartbeat" in served.ask(f"flow_runs/{run['id']}")["state"]["message"]


def test_a_lost_job_shows_in_the_run_while_it_runs(served):
    set_lr(served.root, "2.7e-3")
    (served.root.parent / "hold").touch()
    run = served.start_run()
    job = served.training(calls(served.root).count("train"))
    [supervisor] = [
        process
        for process in psutil.process_iter()
        if "posttrain.dispatch.backends.local_job" in (line := _line(process)) and job["name"] in line
    ]
    supervisor.kill()
    wait_until(
        lambda: states(served.home, "train")[-1] == ("Running", "its job runs, preempted 1 time"),
        limit_s=RUN_S,
        what="the second attempt",
    )
    names = [
        name for name, _ in groupby(name for name, _ in states(served.home, "train"))
    ]  # it may wait for two reasons
    assert names[-3:] == ["Preempted", "Waiting", "Running"]
    assert served.state(run) == "Running"
    (served.root.parent / "hold").unlink()
    wait_until(lambda: served.state(run) == "Completed", limit_s=RUN_S, what="the end of the run")
    assert served.ask(f"flow_runs/{run}")["state"]["message"].endswith("stages ran, preempted 1 time")


def test_the_nightly_deployment_fetches_the_branch_and_leaves_its_page(served):
    run = served.start_run("nightly/nightly-process")
    wait_until(
        lambda: served.state(run) in ("Completed", "Failed", "Crashed"), limit_s=RUN_S, what="the end of the night"
    )
    assert served.state(run) == "Completed"
    assert "this branch follows no remote one" in (served.home / "worker.log").read_text()
    assert "- policy: no evaluation is committed at HEAD to compare with." in artifact(served.home, "nightly")


def test_experiments_that_are_cancelled_leave_no_job_and_are_gone_on_with(served):
    plan = [
        "experiments/experiments-process",
        "--param",
        'overrides=[{"name": "one"}, {"name": "two", "set": {"train_policy.lr": 0.003}}]',
    ]
    (served.root.parent / "hold").touch()
    num_before = calls(served.root).count("train")
    run = served.start_run(*plan)
    wait_until(
        lambda: calls(served.root).count("train") == num_before + 2,
        limit_s=RUN_S,
        what="two trainings beside each other",
    )
    served.prefect("flow-run", "cancel", run)
    wait_until(
        lambda: all(job["ended_at"] for job in jobs(served.root, "train")[-2:]),
        limit_s=15,
        what="the end of the cancelled jobs",
    )
    wait_until(lambda: not processes_of(served.root, "hold"), limit_s=15, what="the end of their processes")
    wait_until(lambda: served.state(run) == "Cancelled", limit_s=RUN_S, what="the cancelled state")
    (served.root.parent / "hold").unlink()
    run = served.start_run(*plan)
    wait_until(
        lambda: served.state(run) in ("Completed", "Failed", "Crashed"),
        limit_s=RUN_S,
        what="the end of the experiments",
    )
    assert served.state(run) == "Completed"
    told = "strict success 50.3 % (45.0 … 55.0 %)"
    assert f"| `exp/two-seed1` | train_policy.lr = 0.003, seed = 1 | {told} | {told} |" in artifact(
        served.home, "experiments"
    )


def test_no_key_is_written_down_and_it_ends_with_all_that_it_started_and_the_jobs_of_its_runs(served):
    set_lr(served.root, "2.8e-3")
    (served.root.parent / "hold").touch()
    num_before = calls(served.root).count("train")
    served.start_run()
    served.training(num_before)
    for path in served.root.parent.rglob("*"):  # while a run is under way: neither in records nor in temporary files
        assert not path.is_file() or b"not-to-be-written-down" not in path.read_bytes(), path
        assert not path.is_file() or path == served.home / "auth" or served.secret.encode() not in path.read_bytes(), (
            path
        )
    supervisors = processes_of(served.root, "posttrain.dispatch.backends.local_job")
    assert supervisors
    for job in supervisors:
        for process in (job, *job.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a child that ended since it was listed
                assert served.secret not in process.environ().values(), process
    started = served.processes + psutil.Process(served.process.pid).children(recursive=True)
    os.kill(served.process.pid, signal.SIGTERM)
    assert served.process.wait(120) == 143
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    assert not processes_of(served.root, "")
    assert jobs(served.root, "train")[-1]["ended_at"]


def test_killed_it_leaves_nothing_behind_but_the_jobs_which_are_found_again(tmp_path, repository):
    with serving(tmp_path, repository) as served:
        (tmp_path / "hold").touch()
        run = served.start_run()
        job = served.training(num_before=0)
        started = [one for one in psutil.Process(served.process.pid).children(recursive=True) if one.is_running()]
        jobs_own = {one.pid for one in processes_of(served.root, "hold") + processes_of(served.root, "posttrain.")}
        served.process.kill()
        served.process.wait()
        _, alive = psutil.wait_procs([one for one in started if one.pid not in jobs_own], timeout=60)
        assert not alive, [_line(one) for one in alive]
    with serving(tmp_path, repository) as again:
        assert again.secret == served.secret
        again.start_run()
        wait_until(
            lambda: jobs(again.root, "train")[-1]["owner"] != job["owner"],
            limit_s=RUN_S,
            what="the job that is found again",
        )
        (tmp_path / "hold").unlink()
        wait_until(lambda: jobs(again.root, "train")[-1]["ended_at"], limit_s=RUN_S, what="the end of the job")
        assert calls(again.root).count("train") == 1
        assert again.state(run) != "Completed"


def _flow_processes(served: Served) -> list[int]:
    return [
        process.pid
        for process in psutil.Process(served.process.pid).children(recursive=True)
        if "prefect.engine" in _line(process)
    ]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
