"""Permissions of the state folder."""

import os
import stat

import pytest

from posttrain.runtime.state import private, private_folder, state_dir


@pytest.fixture(autouse=True)
def tree(tmp_path):
    """A person's, with the usual umask."""
    before = os.umask(0o022)
    tmp_path.chmod(0o755)
    yield
    os.umask(before)


def mode(path):
    return oct(path.stat().st_mode & 0o7777)


def write(path):
    with open(path, "w", opener=private) as file:
        file.write("x")
    return path


def test_the_state_folder_is_its_users_alone_with_all_that_is_made_in_it(tmp_path):
    state = state_dir(tmp_path)
    deep = private_folder(state / "local" / "jobs")
    assert [mode(folder) for folder in (tmp_path, state, state / "local", deep)] == ["0o755", "0o700", "0o700", "0o700"]
    assert mode(write(deep / "log")) == "0o600"


def test_what_others_could_read_until_now_they_cannot_any_more(tmp_path):
    (tmp_path / ".posttrain").mkdir(0o755)
    (tmp_path / ".posttrain" / "log").write_text("old")
    assert mode(tmp_path / ".posttrain" / "log") == "0o644"
    assert (mode(state_dir(tmp_path)), mode(write(tmp_path / ".posttrain" / "log"))) == ("0o700", "0o600")


def test_where_a_team_may_write_the_tree_it_may_write_the_state_too_and_nobody_else_may_read_it(tmp_path):
    tmp_path.chmod(0o2775)
    state = private_folder(state_dir(tmp_path) / "logs")
    assert [mode(folder) for folder in (state.parent, state)] == ["0o2770", "0o2770"]
    assert mode(write(state / "log")) == "0o660"


def test_a_state_folder_that_a_person_has_opened_for_the_group_stays_so(tmp_path):
    state_dir(tmp_path).chmod(0o770)
    assert mode(private_folder(state_dir(tmp_path) / "logs")) == "0o770"


def test_a_folder_that_everybody_may_write_into_like_tmp_makes_no_team(tmp_path):
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    assert (mode(state_dir(tmp_path)), mode(write(tmp_path / "file"))) == ("0o700", "0o600")
