"""Manifests for Kubernetes: golden, valid by its newest schema, and without a word that it or a
shell would read as more than text."""

import json
import os
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from posttrain.dispatch.backend import JobSpec, Resources
from posttrain.dispatch.backends.kubernetes_manifest import (
    OWN_FOLDER,
    OWN_VOLUME,
    KubernetesSettings,
    Mount,
    manifest,
    name_of_first,
    read_template,
)
from posttrain.runtime.exits import ConfigurationError

REPOSITORY = Path(__file__).resolve().parents[3]
TEMPLATE = REPOSITORY / "infra" / "kubernetes" / "job.yaml"
GOLDEN = REPOSITORY / "tests" / "golden"
SPEC = JobSpec(
    "train-sft-0123456789-1",
    ("python", "-m", "posttrain.pipeline.job.shared_disk", "train_sft"),
    Path("/team/jobs/train-sft-0123456789-1"),
    Path("/team/logs/train-sft-0123456789-1.log"),
    Resources(gpus=2, cpus=8, memory_gb=64, time_limit_s=7200, shm_gb=16),
    {"PYTHONPATH": "/team/code", "PRICE": "$(HOME) $$ 5"},
)
FULL = KubernetesSettings(
    template=TEMPLATE,
    image="registry.example/posttrain:1",
    namespace="posttrain",
    mounts=(
        Mount("/team", {"persistentVolumeClaim": {"claimName": "work"}}),
        Mount("/models", {"hostPath": {"path": "/srv/models"}}, True),
    ),
    queue="research",
    secret="posttrain-keys",
)
SMALL = KubernetesSettings(template=TEMPLATE, image="busybox:1", user=0)
NO_DISK = KubernetesSettings(template=TEMPLATE, image="busybox:1", secret="posttrain-keys", is_disk_shared=False)


@pytest.mark.parametrize(
    ("settings", "golden"),
    [(FULL, "kubernetes_job.yaml"), (SMALL, "kubernetes_job_small.yaml"), (NO_DISK, "kubernetes_job_no_disk.yaml")],
)
def test_a_job_is_the_golden_one_and_valid_by_the_newest_schema(settings, golden):
    spec = SPEC if settings is FULL else JobSpec("small", ("true",), Path("/w"), Path("/w/log"))
    job = manifest(spec, settings, read_template(TEMPLATE))
    assert yaml.safe_dump(job, sort_keys=False, width=200) == (GOLDEN / golden).read_text()
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_what_the_submitter_may_do_is_valid_by_the_newest_schema():
    for thing in yaml.safe_load_all((TEMPLATE.parent / "rbac.yaml").read_text()):
        kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_does_not_pass():
    job = manifest(SPEC, FULL, read_template(TEMPLATE))
    job["spec"]["backofLimit"] = 0
    with pytest.raises(kubernetes_validate.ValidationError, match="backofLimit"):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_a_template_may_have_a_larger_disk_for_jobs_that_share_none():
    template = read_template(TEMPLATE)
    own = {"name": OWN_VOLUME, "ephemeral": {"volumeClaimTemplate": {}}}
    template["spec"]["template"]["spec"]["volumes"].append(own)
    pod = manifest(SPEC, NO_DISK, template)["spec"]["template"]["spec"]
    assert [volume for volume in pod["volumes"] if volume["name"] == OWN_VOLUME] == [own]
    assert {"name": OWN_VOLUME, "mountPath": OWN_FOLDER} in pod["containers"][0]["volumeMounts"]


def test_keys_of_the_environment_are_in_no_manifest(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-key")
    text = json.dumps(manifest(SPEC, FULL, read_template(TEMPLATE)))
    assert "planted-key" not in text
    assert not [name for name, value in os.environ.items() if len(value) > 20 and value in text]


def test_the_template_stays_as_it_was():
    template = read_template(TEMPLATE)
    manifest(SPEC, FULL, template)
    assert template == read_template(TEMPLATE)


@pytest.mark.parametrize(
    "text", ["kind: Pod", "[", "kind: Job\nspec: {template: {spec: {containers: [{name: other}]}}}", None]
)
def test_a_template_that_has_no_place_for_the_command_is_refused(tmp_path, text):
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"job\.yaml"):
        read_template(path)


def test_a_bound_on_the_disk_that_the_template_has_stays():
    template = read_template(TEMPLATE)
    (container,) = template["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"ephemeral-storage": "50Gi", "memory": "1Gi"}}
    (made,) = manifest(SPEC, FULL, template)["spec"]["template"]["spec"]["containers"]
    assert made["resources"]["limits"] == {"ephemeral-storage": "50Gi", "memory": "65536Mi", "nvidia.com/gpu": "2"}


def test_a_job_on_several_nodes_has_a_pod_for_each_and_they_share_out_the_nodes_among_them(tmp_path):
    name = "echo $POSTTRAIN_NODE"
    spec = JobSpec("two", ("sh", "-c", name), tmp_path, tmp_path / "log", Resources(nodes=2))
    job = manifest(spec, SMALL, read_template(TEMPLATE))
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    assert (job["spec"]["completions"], job["spec"]["parallelism"], name_of_first(job)) == (2, 2, "")
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["env"][-1]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    command = [word.replace("$$", "$") for word in (*container["command"], *container["args"])]
    ends = []
    for pod in ("two-a", "two-b", "two-c"):
        ended = subprocess.run(command, env={"POSTTRAIN_POD": pod}, capture_output=True, text=True, check=False)
        ends.append((ended.returncode, ended.stdout))
    assert ends == [(0, "0\n"), (0, "1\n"), (75, "")]
    assert name_of_first(job) == "two-a"
