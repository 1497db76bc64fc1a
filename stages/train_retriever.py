"""A retriever of tools from the catalogue in `data/tools` and the world's own, and how well it
finds tools that it was not trained on. Nothing is trained where the tasks' own tools are offered:
the retriever's folder and the summary say so."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.config.params import Params
from posttrain.data.files import leave_untrained, write_json
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.retrieval.catalogue import TOOLS, Catalogue, Question, of_world, read_catalogue
from posttrain.retrieval.retriever import FOLDER, save_retriever
from posttrain.rollout.params import OfferedTools
from posttrain.worlds.catalog import make_domain, tasks_of
from posttrain.worlds.protocol import Domain, ExpertDomain

SUMMARY = Path("reports/train_retriever/summary.json")


def train_retriever(run: StageRun) -> None:
    if isinstance(run.params.agent.tools, OfferedTools):
        leave_untrained(FOLDER, "agent.tools is offered")
        write_json(SUMMARY, {"is_asked": False})
    else:
        _train(run)


def _train(run: StageRun) -> None:
    # here, as they bring FAISS and perhaps torch, which a run without retrieval need not wait for
    from posttrain.retrieval.quality import compare
    from posttrain.retrieval.rankers import WordRanker

    params, settings = run.params, run.params.train_retriever
    domain = make_domain(params.world)
    imported, own = read_catalogue(TOOLS), of_world(domain.tools, domain.name)
    # the world's first: of two tools with one name the world's answers
    catalogue = Catalogue(tuple(own)).with_more(imported.tools, imported.questions)
    examples = _asked(domain, params)
    kept = Catalogue(catalogue.tools, tuple(examples))
    summary: dict[str, Any] = {
        "is_asked": True,
        "num_tools": len(catalogue.tools),
        "num_world_tools": len(own),
        "num_world_questions": len(examples),
    }
    if settings.method == "words":
        save_retriever(FOLDER, kept, settings)
        rankers = {"words": WordRanker(catalogue.tools)}
        write_json(SUMMARY, summary | {"found": compare(rankers, catalogue.tools, catalogue.questions)})
        return
    from posttrain.retrieval.training import train_retriever as train

    trained = train(catalogue, examples, params=settings, seed=params.seed, scratch=run.checkpoint_dir)
    save_retriever(FOLDER, kept, settings, trained.encoder)
    found = compare(trained.rankers, catalogue.tools, trained.split.test)
    losses = [round(loss, 4) for loss in trained.losses]
    about = {"num_held_out_tools": len(trained.split.held_out), "losses": losses, "found_of_held_out": found}
    write_json(SUMMARY, summary | about)


def _asked(domain: Domain, params: Params) -> Sequence[Question]:
    """Questions of the world's sft tasks with the tools that its expert calls; none without one."""
    from posttrain.rollout.offers import needed_tools, question_of

    wanted = params.train_retriever.num_world_tasks
    if not wanted or not isinstance(domain, ExpertDomain):
        return []
    tasks = tasks_of(domain, "sft", params.world, at_most=wanted)
    needed = needed_tools(domain, tasks, params.agent)
    return [
        Question(question_of(task), names, f"world/{domain.name}")
        for task, names in zip(tasks, needed, strict=True)
        if names
    ]


if __name__ == "__main__":
    run_stage(train_retriever)
