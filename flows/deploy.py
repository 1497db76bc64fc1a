"""Creates or updates our objects on a Prefect server: work pools, the deployments of
`prefect.yaml`, and the automation that marks dead runs.

`python -m flows.deploy` in the repository, with PREFECT_API_URL naming the server. It may be run
again and again; a pool that a person has paused stays paused.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.workers.process import ProcessWorker

from flows.serve import POOL
from posttrain.runtime.exits import ConfigurationError, Interrupted, exit_codes
from posttrain.runtime.plain_yaml import read_yaml

AUTOMATIONS = Path("infra/prefect/automations.yaml")
KUBERNETES_POOL = Path("infra/prefect/kubernetes_pool.json")
KUBERNETES = "posttrain-kubernetes"


def deploy() -> None:
    """Raises ConfigurationError where no server is named, Interrupted where it refuses a
    deployment, with the command's own words before."""
    if not PREFECT_API_URL.value():
        raise ConfigurationError(
            "PREFECT_API_URL is not set, so there is no server to deploy to; `make serve` starts one and prints its URL"
        )
    with get_client(sync_client=True) as client:
        update_pool(client, POOL, "process", ProcessWorker.get_default_base_job_template())
        # One run at a time: their pods may be on two nodes, and the records of jobs are a SQLite
        # file, which the processes of one machine may share.
        update_pool(client, KUBERNETES, "kubernetes", json.loads(KUBERNETES_POOL.read_text(encoding="utf-8")), limit=1)
        if subprocess.run([sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], check=False).returncode:
            raise Interrupted(
                "the deployments of prefect.yaml are not all on the server; see above, and run this again"
            )
        for content in read_yaml(AUTOMATIONS)["automations"]:
            update_automation(client, AutomationCore.model_validate(content))


def update_pool(
    client: SyncPrefectClient, name: str, kind: str, template: dict[str, Any], *, limit: int | None = None
) -> None:
    """Create or update a work pool. Without a `limit` of runs at a time, one that a person has set
    stays."""
    limits: Any = {} if limit is None else {"concurrency_limit": limit}
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=template, **limits))
    else:
        client.update_work_pool(name, WorkPoolUpdate(base_job_template=template, **limits))
    print(f"work pool {name}", flush=True)


def update_automation(client: SyncPrefectClient, wanted: AutomationCore) -> None:
    """Create the automation, or replace the one of that name."""
    if there := client.read_automations_by_name(wanted.name):
        client.update_automation(there[0].id, wanted)
    else:
        client.create_automation(wanted)
    print(f"automation {wanted.name}", flush=True)


if __name__ == "__main__":
    with exit_codes():
        deploy()
