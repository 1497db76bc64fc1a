"""Reads what people or judges preferred from the files that `sample_preferences.source` names, into
pairs and verdicts; both are empty where it names none."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.data.files import write_json, write_jsonl
from posttrain.data.importing.importer import quarantined, unread_keys
from posttrain.data.importing.preferences import (
    ImportedPreferences,
    Scored,
    files_of,
    refuse_too_many_bad,
)
from posttrain.data.importing.preferences import import_preferences as read
from posttrain.data.preferences import IMPORTED, Pair, write_pairs, write_verdicts
from posttrain.data.schemas import TrajectoryRow
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.train.params import SampledPairs, SamplePreferencesParams
from posttrain.train.preference_pairs import pairs_of


def import_preferences(run: StageRun) -> None:
    settings = run.params.sample_preferences
    found = ImportedPreferences()
    if not isinstance(settings.source, SampledPairs):
        path = Path(settings.source.path)
        found = read(files_of(path))
        IMPORTED.mkdir(parents=True, exist_ok=True)
        write_jsonl(IMPORTED / "quarantine.jsonl", quarantined(found.bad))  # before the next line may stop the run
        refuse_too_many_bad(found, max_quarantine_frac=run.params.validate_data.max_quarantine_frac, source=path)
        if unread := unread_keys(found.unread):
            print(f"{path}: {unread}", file=sys.stderr, flush=True)
    of_scores = pairs_of_scores(found.scored, settings)
    pairs = [
        replace(pair, chosen=_without_tokens(pair.chosen), rejected=_without_tokens(pair.rejected))
        for pair in (*found.pairs, *of_scores)
    ]
    verdicts = [replace(one, row=_without_tokens(one.row)) for one in found.verdicts]
    write_jsonl(IMPORTED / "quarantine.jsonl", quarantined(found.bad))
    write_pairs(IMPORTED / "pairs.parquet", pairs)
    write_verdicts(IMPORTED / "verdicts.parquet", verdicts)
    summary = {
        "num_records": found.num_records,
        "num_quarantined": len(found.bad),
        "num_ties": found.num_ties,
        "num_pairs": len(found.pairs),
        "num_scores": len(found.scored),
        "num_pairs_of_scores": len(of_scores),
        "num_thumbs_up": sum(one.is_desirable is True for one in verdicts),
        "num_thumbs_down": sum(one.is_desirable is False for one in verdicts),
        "num_turn_marks": sum(mark is not None for one in verdicts for mark in one.turn_marks),
        "num_people": len({*(one.said.who for one in pairs), *(one.said.who for one in verdicts)} - {""}),
    }
    write_json(Path("reports/import_preferences/summary.json"), summary)


def pairs_of_scores(scored: Sequence[Scored], settings: SamplePreferencesParams) -> list[Pair]:
    """At most one pair of the answers of a group, by the rule for sampled ones; equal scores make
    none."""
    pairs = []
    for _, group in itertools.groupby(sorted(scored, key=lambda one: one.group), key=lambda one: one.group):
        said = {}
        rows = []
        for one in group:
            rows.append(replace(one.row, trajectory=replace(one.row.trajectory, reward=one.score)))
            said[rows[-1].trajectory_id] = one.said
        pairs += [replace(pair, said=said[pair.chosen.trajectory_id]) for pair in pairs_of(rows, settings.pairs)]
    return pairs


def _without_tokens(row: TrajectoryRow) -> TrajectoryRow:
    """Token ids are those of the recording model's tokenizer, and ours may be another."""
    return replace(row, trajectory=replace(row.trajectory, token_ids=(), mask=(), logprobs=()))


if __name__ == "__main__":
    run_stage(import_preferences)
