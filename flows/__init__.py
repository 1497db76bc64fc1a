"""Prefect flows over the graph: one per thing that a person asks for.

Nothing happens at import, but for this: Prefect reads its settings while it is imported, and
reports on its users unless told before.
"""

import os

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# A server of its own has a secret and dies with its flow (local_server.py). Prefect's has neither:
# where no server is named, it must start none.
os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
# A fresh server migrates its database first; on a busy laptop the default of 20 s is too short.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
# Dead runs are found by heartbeats that do not come (infra/prefect/automations.yaml); by default
# there is one in three minutes.
os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
