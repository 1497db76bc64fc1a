"""The batch script for SLURM, and the meaning of its words: read without a cluster. `make test
NEEDS=slurm` asks a real one."""

import subprocess
from pathlib import Path

import pytest

from posttrain.dispatch.backend import NO_OTHERS, Cause, JobSpec, JobState, JobStatus, Resources
from posttrain.dispatch.backends.slurm_script import render
from posttrain.dispatch.backends.slurm_states import from_sacct, from_scontrol
from posttrain.runtime.exits import ConfigurationError

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm_job.sh"
FIELDS = (
    "JobId=3 JobName=train-1 UserId=root(0) JobState={state} Reason={reason} Dependency=(null) Requeue=0 "
    "Restarts=0 BatchFlag=1 ExitCode={exit_code} "
    "RunTime={ran} TimeLimit=01:02:00 TRES=cpu=1,mem=10847M,node=1 WorkDir=/ JobState=COMPLETED ExitCode=7:0 "
    "{comment} StdOut=/dev/null Power= "
    "TresPerNode={gres}"
)
KILLED = "RaisedSignal:9(Killed)"
LATE = JobStatus(JobState.ENDED, 75, Cause.TIME_LIMIT, "it heeded the warning before its time limit")


def line(
    state: str,
    exit_code: str = "0:0",
    reason: str = "None",
    comment: str = "",
    *,
    gres: str = "gres:gpu:1",
    ran: str = "00:59:59",
) -> str:
    return FIELDS.format(state=state, exit_code=exit_code, reason=reason, comment=comment, gres=gres, ran=ran)


def test_the_script_is_the_golden_one(tmp_path):
    resources = Resources(gpus=2, cpus=4, memory_gb=1.5, time_limit_s=90)
    spec = JobSpec(
        "train-sft-0123456789-1",
        ("python", "-m", "a b", "$(touch pwned)"),
        tmp_path,
        tmp_path / "it's a log",
        resources,
        {"B": "2 $HOME", "A": ""},
    )
    assert render(spec, ["--partition=spot"]).replace(str(tmp_path), "/shared/folder") == GOLDEN.read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    "word", ["", "-n", "a\r\nb", "\\", "$'\\x41'", "!!", "#SBATCH --gres=gpu:9", "\n#SBATCH --gres=gpu:9\n", "ü\t\x01"]
)
def test_bash_reads_every_word_as_it_is(tmp_path, word):
    script = render(JobSpec("words", ("printf", "%s", word), tmp_path, tmp_path / f"log {word.replace('/', '')}"))
    assert "\r" not in script
    subprocess.run(["bash", "-c", script], check=True)
    [log] = tmp_path.iterdir()
    assert log.read_bytes().decode() == word


@pytest.mark.parametrize("code", [0, 9])
def test_each_node_but_the_first_runs_the_command_as_a_task_and_the_first_hears_of_one_that_does_not(
    tmp_path, code, monkeypatch
):
    (tmp_path / ".posttrain").mkdir()
    srun = f'#!/bin/sh\necho "$@" >asked; while [ "$1" != -- ]; do shift; done; shift; "$@"; exit {code}\n'
    (tmp_path / "srun").write_text(srun)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    resources = Resources(nodes=3, cpus=4)
    command = ("sh", "-c", 'echo "$1" >"node-$POSTTRAIN_NODE"', "sh", "a  b")
    script = render(JobSpec("nodes", command, tmp_path, tmp_path / "log", resources))
    assert "#SBATCH --nodes=3\n#SBATCH --ntasks=3\n" in script
    assert "exec -- sh " in script
    subprocess.run(["bash", "-c", script.replace("exec -- sh", "sh") + "\nwait"], check=True)
    assert [(tmp_path / name).read_text() for name in ("node-", "node-1")] == ["a  b\n"] * 2
    asked = (tmp_path / "asked").read_text()
    assert "--nodes=2 --ntasks=2 --relative=1 --cpus-per-task=4 --kill-on-bad-exit=1 -- sh" in asked
    assert (tmp_path / NO_OTHERS).exists() == (code != 0)


@pytest.mark.parametrize(
    ("name", "environment", "options"),
    [("17", {}, ()), ("A", {}, ()), ("a\n", {}, ()), ("a", {"A-B": ""}, ()), ("a", {}, ("--wrap=a b",))],
)
def test_what_cannot_be_a_job_is_refused(tmp_path, name, environment, options):
    with pytest.raises(ConfigurationError):
        render(JobSpec(name, ("true",), tmp_path, tmp_path / "log", environment=environment), options)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (line("PENDING", reason="Licenses"), JobStatus(JobState.WAITING, note="Licenses")),
        (line("PENDING"), JobStatus(JobState.WAITING)),
        (line("RUNNING"), JobStatus(JobState.RUNNING)),
        (line("COMPLETING", "0:9"), JobStatus(JobState.RUNNING)),
        (line("SUSPENDED"), JobStatus(JobState.RUNNING, note="SUSPENDED")),
        (line("COMPLETED"), JobStatus(JobState.ENDED, 0, Cause.EXITED)),
        (line("FAILED", "75:0", "NonZeroExitCode"), JobStatus(JobState.ENDED, 75, Cause.EXITED)),
        (line("FAILED", "75:0", "NonZeroExitCode", ran="01:01:10"), LATE),
        (line("FAILED", "0:11", "RaisedSignal:11(Segmentation_fault)"), JobStatus(JobState.ENDED, 139, Cause.EXITED)),
        (
            line("FAILED", "0:9", KILLED, "Comment=cancelled"),
            JobStatus(JobState.ENDED, 137, Cause.CANCELLED, f"FAILED, {KILLED}"),
        ),
        (
            line("OUT_OF_MEMORY", "0:125", "OutOfMemory"),
            JobStatus(JobState.ENDED, None, Cause.OUT_OF_MEMORY, "OUT_OF_MEMORY, OutOfMemory"),
        ),
        (line("TIMEOUT", "0:15", "TimeLimit"), JobStatus(JobState.ENDED, 143, Cause.TIME_LIMIT, "TIMEOUT, TimeLimit")),
        (line("NODE_FAIL", reason="NodeDown"), JobStatus(JobState.ENDED, None, Cause.NODE_LOST, "NODE_FAIL, NodeDown")),
        (line("PREEMPTED", "75:0"), JobStatus(JobState.ENDED, 75, Cause.PREEMPTED, "PREEMPTED")),
    ],
)  # fmt: skip
def test_the_controllers_line_is_read(said, expected):
    assert from_scontrol(said) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "CANCELLED by 0|0:0|00:00:09|01:02:00|cancelled",
            JobStatus(JobState.ENDED, None, Cause.CANCELLED, "CANCELLED"),
        ),
        ("FAILED|0:9|00:00:09|01:02:00|cancelled", JobStatus(JobState.ENDED, 137, Cause.CANCELLED, "FAILED")),
        ("FAILED|3:0|01:01:10|01:02:00|", JobStatus(JobState.ENDED, 3, Cause.EXITED)),
        ("FAILED|75:0|00:59:59|01:02:00|", JobStatus(JobState.ENDED, 75, Cause.EXITED)),
        ("FAILED|75:0|01:01:10|01:02:00|", LATE),
        ("FAILED|75:0|1-00:00:10|1-00:01:00|", LATE),
        ("FAILED|75:0|2-00:00:00|UNLIMITED|", JobStatus(JobState.ENDED, 75, Cause.EXITED)),
        ("COMPLETED|0:0|00:00:09|01:02:00|a|b", JobStatus(JobState.ENDED, 0, Cause.EXITED)),
    ],
)
def test_the_accountings_line_is_read(said, expected):
    assert from_sacct(said) == expected
