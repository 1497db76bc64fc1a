import pytest

from posttrain.runtime.exits import DataError
from posttrain.tracking.metrics_log import MetricsLog, read_metrics


class Recorder:
    def __init__(self):
        self.lines = []
        self.is_closed = False

    def write(self, step, metrics):
        self.lines.append((step, dict(metrics)))

    def close(self):
        self.is_closed = True


def test_every_line_is_on_the_disk_as_soon_as_it_is_written(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(1, {"loss": 0.5})

    assert (tmp_path / "metrics.jsonl").read_text() == '{"loss": 0.5, "step": 1}\n'
    log.close()


def test_a_sink_hears_what_a_checkpoint_brought_back_and_then_the_rest(tmp_path):
    sink = Recorder()
    with MetricsLog(tmp_path / "metrics.jsonl", sinks=[sink], earlier='{"loss": 0.5, "step": 1}\n') as log:
        log.write(2, {"loss": 0.25})

    assert sink.lines == [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
    assert sink.is_closed
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"loss": 0.5, "step": 1}, {"loss": 0.25, "step": 2}]


def test_what_json_cannot_say_becomes_null(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write(1, {"kl": float("nan"), "loss": float("inf")})

    assert read_metrics(tmp_path / "metrics.jsonl") == [{"kl": None, "loss": None, "step": 1}]


def test_what_is_left_of_an_earlier_file_is_not_gone_on_from(tmp_path):
    """The lines come from the sealed checkpoint."""
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff{")
    with MetricsLog(tmp_path / "metrics.jsonl", earlier='{"loss": 0.5, "step": 1}\n'):
        pass
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"loss": 0.5, "step": 1}]


@pytest.mark.parametrize(
    "line", ["", "3", "[1]", '{"loss": 0.5}', '{"step": "1"}', '{"step": 2, "lo', "\udcff", "[" * 99999]
)
def test_a_line_that_is_none_is_named_with_the_file_and_what_to_do(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2 .*dvc repro"):
        read_metrics(tmp_path / "metrics.jsonl")
