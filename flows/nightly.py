"""Brings the tree up to date and compares each policy with what is committed: does the branch still
give the figures that it claims?

The deployment fetches the branch (`infra/prefect/pull.sh`), not the flow. A run fails where a stage
fails, and where a figure differs from the committed one by more than chance over tasks and seeds.
An edited tree is reported and runs all the same.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.exit_codes import StageFailure, exit_with
from flows.graph_run import BESIDE_EACH_OTHER, run_graph
from flows.local_server import with_server
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.git import edited_files, git
from posttrain.provenance.run_records import RECORDS
from posttrain.report.committed import compare_with_committed
from posttrain.runtime.exits import DataError

ROOT = Path()
REPORTS = Path("reports")
RESULTS = ("dvc.lock", REPORTS.as_posix())


@flow(log_prints=False, validate_parameters=False, task_runner=BESIDE_EACH_OTHER)
def nightly() -> State[Any]:
    """Run the graph, and fail where a figure is not what is committed."""
    edited = edited_files(ROOT)
    commit = git(ROOT, "log", "-1", "--format=%h %s")
    get_run_logger().info("at %s, with %s", commit, _named(edited, "edited"))
    ended = run_graph(StageExecutor(ROOT), REPORTS)
    if not ended.is_completed():
        return ended
    comparisons = compare_with_committed(ROOT / REPORTS)
    # no two runs agree on what they took, which RECORDS has
    changed = [path for path in edited_files(ROOT, *RESULTS) if path not in edited and Path(path) != RECORDS]
    page = [
        f"At `{commit}`, with {_named(edited, 'edited')}. {ended.message}.",
        "\n".join(f"- {one.sentence}" for one in comparisons),
    ]
    if changed:
        page.append(f"Other than committed now: {_named(changed, 'changed')}; commit them where they are right.")
    create_markdown_artifact(
        "\n\n".join(page), key="nightly", description="each policy against the figures committed at HEAD"
    )
    if changed_policies := [one.policy for one in comparisons if one.is_wrong]:
        message = f"{', '.join(changed_policies)}: not as committed, by more than chance; see the artifact `nightly`"
        return Failed(message=message, data=StageFailure(message, DataError.code))
    return Completed(message=f"{ended.message}; every figure is as committed, or within chance of it")


def _named(paths: Sequence[str], what: str) -> str:
    """`2 files edited: a, b`; at most ten by name."""
    more = f" and {len(paths) - 10} more" if len(paths) > 10 else ""
    names = f": {', '.join(paths[:10])}{more}" if paths else ""
    return f"{len(paths) or 'no'} file{'' if len(paths) == 1 else 's'} {what}{names}"


if __name__ == "__main__":
    exit_with(lambda: with_server(nightly))
