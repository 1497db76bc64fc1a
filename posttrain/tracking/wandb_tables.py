"""Shows an evaluation and the report in Weights & Biases: figures in the run's summary, every
episode with its transcript in a table, the failing classes as bars, the page as it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.redaction import redact
from posttrain.tracking.wandb_run import TrackedStage, close_wandb, open_wandb

EPISODES = ("task_id", "labels", "split", "strict_success", "success", "reward", "turns", "failure", "transcript")
Show = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], None]


@contextmanager
def shown_evaluation(stage: TrackedStage) -> Iterator[Show]:
    """Gives the function that takes an evaluation's summary and the records of its tasks; it does
    nothing where `open_wandb` gives no run. Raises what that raises, before anything is played."""
    wandb_run = open_wandb(stage)
    if wandb_run is None:
        yield lambda _summary, _records: None
        return
    import wandb

    def show(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
        episodes = wandb.Table(columns=list(EPISODES), data=[_row(record) for record in records])
        classes = wandb.Table(columns=["failure", "episodes"], data=[list(one) for one in summary["failures"].items()])
        bars = wandb.plot.bar(classes, "failure", "episodes", title="Failing classes")
        wandb_run.log({"episodes": episodes, "failing_classes": bars})
        wandb_run.summary.update(dict(summary))

    is_good = False
    try:
        yield show
        is_good = True
    finally:
        close_wandb(wandb_run, is_good=is_good)


def show_page(stage: TrackedStage, page: str) -> None:
    """The report, in a run of its own."""
    wandb_run = open_wandb(stage)
    if wandb_run is not None:
        import wandb

        wandb_run.log({"report": wandb.Html(page, inject=False, data_is_not_path=True)})
        close_wandb(wandb_run)


def transcript_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """A conversation as a person reads it, without keys."""
    return escape_control_chars(redact("\n".join(line for message in messages for line in _lines(message))))


def _row(record: Mapping[str, Any]) -> list[Any]:
    known = {**record, "labels": record["cell"], "transcript": transcript_text(record["transcript"])}
    return [known[name] for name in EPISODES]


def _lines(message: Mapping[str, Any]) -> Iterator[str]:
    if reasoning := message.get("reasoning"):
        yield f"[{message['role']}, reasoning] {reasoning}"
    if content := message.get("content"):
        yield f"[{message['role']}] {content}"
    yield from (f"[{message['role']}, call] {name} {arguments}" for name, arguments in message.get("calls", ()))
