"""Jobs on the cluster that KUBECONFIG names, with the rights of infra/kubernetes/rbac.yaml: the
contract, and every way in which a job can end."""

import os
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest
from kubernetes import client

from posttrain.dispatch.backend import Cause, JobState
from posttrain.dispatch.backends.kubernetes import KubernetesBackend
from posttrain.dispatch.dispatcher import Dispatcher, Work
from posttrain.dispatch.records import JobRecords
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.dispatch.backends.backend_contract import BackendContract
from tests.real import cluster
from tests.wire import Wire

pytest_plugins = ["tests.real.kubernetes_fixtures"]
pytestmark = pytest.mark.needs_k8s
SLEEP = "import time; open('up', 'w').close(); time.sleep(600)"
CHECKPOINT = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print('checkpoint', flush=True), sys.exit({code})))\n"
    "open('up', 'w').close(); time.sleep(600)"
)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "a folder; $(touch pwned) $$HOME"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(namespace, tmp_path):
    return cluster.settings(namespace, tmp_path)


@pytest.fixture
def new_backend(settings, namespace):
    return KubernetesBackend(settings, cluster.submitter(namespace))


@pytest.fixture
def core():
    return client.CoreV1Api(cluster.admin())


class TestKubernetesBackend(BackendContract):
    patience_s = 60.0

    def running(self, backend, folder, script, name, **resources):
        job_id = backend.submit(self.job(folder, script, name=name, **resources))
        self.wait(backend, job_id, JobState.RUNNING)
        end = time.monotonic() + self.patience_s
        while not (folder / "up").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        return job_id

    def delete_pods(self, core, namespace, job_id):
        core.delete_collection_namespaced_pod(namespace, label_selector=f"job-name={job_id}")

    def test_the_scheduler_says_what_is_lacking(self, backend, folder):
        backend.submit(self.job(folder, SLEEP, name="holder", gpus=2))
        self.wait(backend, "holder", JobState.RUNNING)
        backend.submit(self.job(folder, SLEEP, name="waiter", gpus=1))
        end = time.monotonic() + 2 * 5  # longer than the patience: a full cluster is no reason to end a job
        while time.monotonic() < end:
            status = backend.status("waiter")
            assert status.state is JobState.WAITING
            time.sleep(0.2)
        assert "Insufficient nvidia.com/gpu" in status.note

    def test_what_no_node_could_ever_hold_ends_and_says_so(self, backend, folder):
        status = self.wait(backend, backend.submit(self.job(folder, SLEEP, name="giant", gpus=64)), JobState.ENDED)
        assert status.cause is Cause.UNSCHEDULABLE
        assert "64 GPUs" in status.note

    @pytest.mark.parametrize("image", ["localhost/no-such-image:1", "Not An Image"])
    def test_an_image_that_is_not_there_is_named_once(self, settings, namespace, folder, image, request):
        backend = KubernetesBackend(replace(settings, image=image), cluster.submitter(namespace))
        job_id = backend.submit(self.job(folder, SLEEP, name=f"image-{len(image)}"))
        request.addfinalizer(lambda: backend.cancel(job_id))
        status = self.wait(backend, job_id, JobState.ENDED)
        assert status.cause is Cause.NO_IMAGE
        assert image in status.note

    def test_a_secret_that_is_not_there_is_a_wrong_configuration(self, settings, namespace, folder, request):
        backend = KubernetesBackend(replace(settings, secret="no-such-secret"), cluster.submitter(namespace))
        job_id = backend.submit(self.job(folder, SLEEP, name="keyless"))
        request.addfinalizer(lambda: backend.cancel(job_id))
        status = self.wait(backend, job_id, JobState.ENDED)
        assert (status.exit_code, status.cause, "no-such-secret" in status.note) == (78, Cause.EXITED, True)

    def test_keys_come_from_the_secret_and_stand_in_no_object(self, settings, namespace, folder, core, monkeypatch):
        monkeypatch.setenv("WANDB_API_KEY", "planted-key")
        core.create_namespaced_secret(
            namespace, {"metadata": {"name": "keys"}, "stringData": {"WANDB_API_KEY": "planted-key"}}
        )
        backend = KubernetesBackend(replace(settings, secret="keys"), cluster.submitter(namespace))
        job_id = backend.submit(self.job(folder, "import os; print(os.environ['WANDB_API_KEY'][::-1])", name="keyed"))
        assert self.wait(backend, job_id, JobState.ENDED).exit_code == 0
        assert (folder / "keyed.log").read_text() == "yek-detnalp\n"
        assert "planted-key" not in repr(client.BatchV1Api(cluster.admin()).list_namespaced_job(namespace).to_dict())
        assert "planted-key" not in repr(core.list_namespaced_pod(namespace).to_dict())

    def test_a_job_that_takes_too_much_memory_is_out_of_memory(self, backend, folder):
        job_id = backend.submit(self.job(folder, "x = bytearray(10**9)", name="greedy"))
        status = self.wait(backend, job_id, JobState.ENDED)
        assert (status.exit_code, status.cause) == (137, Cause.OUT_OF_MEMORY)
        assert "256Mi" in status.note

    def test_both_streams_are_in_the_log_each_in_its_order(self, backend, folder):
        script = "import sys\nfor n in range(3): print(n, flush=True); print('e', n, file=sys.stderr, flush=True)"
        self.wait(backend, backend.submit(self.job(folder, script, name="streams")), JobState.ENDED)
        lines = (folder / "streams.log").read_text().splitlines()
        assert [line for line in lines if line[0] != "e"] == ["0", "1", "2"]
        assert [line for line in lines if line[0] == "e"] == ["e 0", "e 1", "e 2"]

    def test_a_job_to_which_kubernetes_gives_no_pod_says_why_and_runs_when_it_may(
        self, backend, folder, core, namespace
    ):
        core.create_namespaced_resource_quota(
            namespace, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        )
        end = time.monotonic() + self.patience_s
        try:
            while not (core.read_namespaced_resource_quota("none", namespace).status.hard or {}):
                assert time.monotonic() < end
                time.sleep(0.1)
            job_id = backend.submit(self.job(folder, "", name="unwanted"))
            while "exceeded quota" not in (status := backend.status(job_id)).note:
                assert time.monotonic() < end, status
                time.sleep(0.2)
            assert (status.state, status.note.startswith("Kubernetes makes no pod for it: ")) == (
                JobState.WAITING,
                True,
            )
        finally:
            core.delete_namespaced_resource_quota("none", namespace)
        assert self.wait(backend, job_id, JobState.ENDED, timeout_s=120).exit_code == 0

    def test_a_command_that_is_not_there_is_127(self, backend, folder):
        spec = replace(self.job(folder, "", name="absent"), command=("no-such-program",))
        assert self.wait(backend, backend.submit(spec), JobState.ENDED).exit_code == 127
        assert "no-such-program" in (folder / "absent.log").read_text()

    def test_a_deleted_pod_is_a_preemption_and_no_second_one_runs(self, backend, folder, core, namespace):
        job_id = self.running(backend, folder, "open('runs', 'a').write('x')\n" + SLEEP, "preempted")
        self.delete_pods(core, namespace, job_id)
        status = self.wait(backend, job_id, JobState.ENDED)
        assert status.cause is Cause.PREEMPTED
        assert (folder / "runs").read_text() == "x"

    def test_nobody_was_there_when_the_pod_was_deleted_and_still_no_second_one_runs(
        self, backend, folder, core, namespace
    ):
        job_id = backend.submit(self.job(folder, "open('runs', 'a').write('x')\n" + SLEEP, name="alone"))
        end = time.monotonic() + self.patience_s
        while not (folder / "up").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        self.delete_pods(core, namespace, job_id)
        time.sleep(10)
        assert self.wait(backend, job_id, JobState.ENDED).cause is Cause.PREEMPTED
        assert (folder / "runs").read_text() == "x"

    @pytest.mark.parametrize("code", [75, 0])
    def test_a_deleted_pod_may_write_its_checkpoint(self, backend, folder, core, namespace, code):
        job_id = self.running(backend, folder, CHECKPOINT.format(code=code), f"checkpoint-{code}")
        self.delete_pods(core, namespace, job_id)
        status = self.wait(backend, job_id, JobState.ENDED)
        assert (status.cause, status.exit_code) in (
            (Cause.EXITED, code),
            (Cause.PREEMPTED, None),
        )  # a pod that is gone tells no code
        assert "checkpoint" in (folder / f"checkpoint-{code}.log").read_text()

    def test_a_preempted_job_is_started_again_by_the_dispatcher(self, backend, folder, core, namespace, tmp_path):
        def prepare(attempt):
            (folder / str(attempt)).mkdir()
            return folder / str(attempt)

        def tell(line):
            if ": running" in line and not (folder / "deleted").exists():
                (folder / "deleted").touch()
                self.delete_pods(core, namespace, line.split(":")[0])

        script = "import os, time; time.sleep(0 if os.getcwd().endswith('2') else 600)"
        spec = self.job(folder, script, name="unused")
        work = Work("again", "a" * 64, spec.command, prepare, spec.resources)
        dispatcher = Dispatcher(
            backend, JobRecords(tmp_path / "jobs.db"), target="kubernetes", owner="run-1", logs=folder, poll_s=0.2
        )
        end = dispatcher.run(work, tell)
        record, status = end.record, end.status
        assert (record.attempt, status.exit_code) == (2, 0)

    def test_a_name_that_another_has_taken_is_refused(self, backend, folder):
        spec = self.job(folder, "", name="mine")
        backend.submit(spec)
        with pytest.raises(ConfigurationError, match="another submitter's"):
            backend.submit(replace(spec, folder=folder / "other"))

    @pytest.mark.parametrize(("name", "refused"), [("a b", "a b"), ("A", "A"), ("x" * 64, "63")])
    def test_what_kubernetes_refuses_is_a_wrong_configuration(self, backend, folder, name, refused):
        with pytest.raises(ConfigurationError, match=refused):
            backend.submit(self.job(folder, "", name=name))

    def test_an_api_server_that_is_away_for_20_s_is_said_and_costs_a_run_nothing(
        self, settings, namespace, folder, tmp_path
    ):
        wire, told = Wire(cluster.admin().configuration.host), []

        def tell(line):
            if ": running" in line and not any(": running" in other for other in told):
                wire.cut()
                threading.Timer(20.0, wire.mend).start()
            told.append(line)

        backend = KubernetesBackend(settings, cluster.submitter(namespace, wire.url))
        spec = self.job(folder, "import time; time.sleep(10)", name="unused")
        work = Work("outage", "b" * 64, spec.command, lambda _: folder, spec.resources)
        records = JobRecords(tmp_path / "jobs.db")
        end = Dispatcher(backend, records, target="kubernetes", owner="run-1", logs=folder, poll_s=0.2).run(work, tell)
        wire.cut()
        assert (end.status.exit_code, len(records.all())) == (0, 1)
        assert [line for line in told if "cannot be reached" in line]

    @pytest.mark.parametrize("how", ["cut", "mute"])
    def test_an_api_server_that_does_not_answer_interrupts_and_later_goes_on(
        self, settings, namespace, folder, how, request
    ):
        wire = Wire(cluster.admin().configuration.host)
        backend = KubernetesBackend(settings, cluster.submitter(namespace, wire.url))
        job_id = backend.submit(self.job(folder, "import time; time.sleep(3)", name=f"wire-{how}"))
        request.addfinalizer(wire.cut)
        getattr(wire, how)()
        start = time.monotonic()
        with pytest.raises(Interrupted, match="does not answer"):
            backend.status(job_id)
        assert time.monotonic() - start < 15
        wire.mend()
        assert self.wait(backend, job_id, JobState.ENDED).exit_code == 0

    def test_a_lost_node_is_noticed(self, settings, namespace, folder, core, tmp_path, request):
        """The node's agent stands still; that is a cut network to the API server, while the job
        lives on.

        Where all nodes are lost at once Kubernetes takes itself for the one that is cut off and
        moves nothing, so with one node the test taints it.
        """
        hasty = tmp_path / "job.yaml"
        hasty.write_text(cluster.TEMPLATE.read_text().replace("tolerationSeconds: 60", "tolerationSeconds: 2"))
        backend = KubernetesBackend(replace(settings, template=hasty), cluster.submitter(namespace))
        job_id = self.running(backend, folder, SLEEP, "lost")
        node = core.list_namespaced_pod(namespace, label_selector=f"job-name={job_id}").items[0].spec.node_name
        kubelets = [one for one in psutil.process_iter(["name", "cmdline"]) if one.info["name"] == "kubelet"]
        agents = [one for one in kubelets if f"--hostname-override={node}" in one.info["cmdline"]]
        if len(agents) != 1:
            backend.cancel(job_id)
            pytest.skip(f"the agent of the node {node} is not a process of this machine")
        os.kill(agents[0].pid, signal.SIGSTOP)
        request.addfinalizer(lambda: cluster.wait_ready(core, node))
        request.addfinalizer(lambda: os.kill(agents[0].pid, signal.SIGCONT))
        notes, end = set(), time.monotonic() + 120
        while cluster.is_ready(core, node):
            assert time.monotonic() < end
            time.sleep(0.5)
        notes.add(backend.status(job_id).note)
        core.patch_node(node, {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}})
        status = self.wait(backend, job_id, JobState.ENDED, timeout_s=90)
        assert status.cause is Cause.NODE_LOST
        assert node in status.note
        assert f"its node {node} does not answer" in notes
