"""A lock's file may be taken away by anybody who finds it free, and still there are never two
holders."""

import threading

from posttrain.runtime.locks import held_if_free, hold, is_held


def test_what_nobody_holds_is_taken_away_and_what_somebody_holds_is_not(tmp_path):
    path = tmp_path / "lock"
    with hold(path):
        with held_if_free(path) as is_ours:
            assert not is_ours
        assert (path.exists(), is_held(path)) == (True, True)
    with held_if_free(path) as is_ours:
        assert (is_ours, is_held(path)) == (True, True)
    assert (path.exists(), is_held(path)) == (False, False)


def test_who_waited_for_a_lock_whose_file_went_holds_the_one_of_that_name(tmp_path):
    path, got = tmp_path / "lock", []

    def wait():
        with hold(path):
            got.append(is_held(path))

    with held_if_free(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
    waiting.join(10)
    assert got == [True]


def test_of_many_who_count_and_clean_at_once_none_counts_beside_another(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def count():
        for _ in range(100):
            with held_if_free(path) as is_ours:
                if is_ours:
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            with hold(path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(most) == {1}
