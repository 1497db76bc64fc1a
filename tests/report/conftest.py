"""A `reports/` folder on the disk, whole or with some files changed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.report.example import good_reports, write_reports


@pytest.fixture
def make_reports(tmp_path: Path) -> Callable[..., Path]:
    """`make_reports({"evaluate/sft.json": {...}})` gives a folder with those files changed; a file
    given as None is left out."""

    def make(changes: Mapping[str, Any] | None = None) -> Path:
        reports = {
            name: content for name, content in (good_reports() | dict(changes or {})).items() if content is not None
        }
        return write_reports(tmp_path / "reports", reports)

    return make
