"""The nightly run on a toy tree and a real temporary server."""

import subprocess

import pytest

from tests.pipeline.toy import artifact, commit, environment_of, make_tree, run, set_lr


def test_only_a_tree_without_edits_is_brought_to_its_remote_branch(tmp_path, repository):
    def pull(tree):
        return subprocess.run(
            [repository / "infra/prefect/pull.sh"], cwd=tree, capture_output=True, text=True, check=True
        ).stdout

    root, clone = make_tree(tmp_path, repository), tmp_path / "clone"
    assert "follows no remote" in pull(root)
    subprocess.run(["git", "clone", "--quiet", str(root), str(clone)], check=True)
    set_lr(root, "2.5e-3")
    commit(root, "a colleague's edit")
    (clone / "evaluate.py").write_text("edited")
    assert "has edits" in pull(clone)
    assert "lr: 2.0e-3" in (clone / "params.yaml").read_text()
    subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=clone, check=True)
    assert "at " in pull(clone)
    assert "lr: 2.5e-3" in (clone / "params.yaml").read_text()


@pytest.mark.needs_prefect
def test_a_night_says_what_is_edited_and_fails_where_a_figure_leaves_its_interval(tmp_path, repository):
    root, home = make_tree(tmp_path, repository), tmp_path / "prefect"
    environment = environment_of(repository, PREFECT_HOME=str(home))
    exit_code, output = run(root, environment, "flows.nightly")
    assert exit_code == 0, output
    page = artifact(home, "nightly")
    assert "with no files edited. 6 of 6 stages ran." in page
    assert "- sft: no evaluation is committed at HEAD to compare with." in page
    assert "reports/evaluate/teacher.tasks.jsonl; commit them" in page

    commit(root, "results")
    text = (root / "evaluate.py").read_text()
    (root / "evaluate.py").write_text(text.replace("0.5 + lr", "(0.5 if sys.argv[1] == 'teacher' else 0.6) + lr"))
    exit_code, output = run(root, environment, "flows.nightly")
    assert exit_code == 65, output
    assert "base, sft, policy: not as committed, by more than chance" in output
    page = artifact(home, "nightly")
    assert "with 1 file edited: evaluate.py. 6 of 6 stages ran." in page
    assert "- teacher: strict success 50.2 %, as committed." in page
    assert "- policy: strict success 60.2 %, and 50.2 % is committed: +10.0 (+8.1 … +11.9) points, more than" in page
