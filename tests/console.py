"""The console command, called in this process."""

import contextlib
import io
from dataclasses import dataclass

from posttrain.cli.main import app


@dataclass(frozen=True)
class Ended:
    """`exit_code` 0 where it simply returned."""

    exit_code: int
    stdout: str
    stderr: str


def posttrain(*arguments: object) -> Ended:
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    exit_code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            app([str(argument) for argument in arguments])
        except SystemExit as end:
            exit_code = int(end.code or 0)
    return Ended(exit_code, *(stream.buffer.getvalue().decode() for stream in (out, errors)))
