"""A page as one HTML file: it opens offline, asks nothing of anybody, and has the same bytes for
the same values.

A content policy in the page allows no script but those whose hashes stand in it. What agents, users
and worlds wrote is made visible and escaped by the template, or is in the page's data, which its
script shows as text.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from posttrain.runtime.control_chars import visible_on_page

_FOLDER = Path(__file__).parent
_CHARTS, _CHARTS_STYLE = _FOLDER / "vendor" / "uPlot.iife.min.js", _FOLDER / "vendor" / "uPlot.min.css"


def rendered(template: Path, *, data: Mapping[str, Any] | None = None, **values: Any) -> str:
    """The template; where a script of its own name lies beside it, with that, the charts' library
    and `page_parts.js`. `data` is what the scripts read, as `{{ data }}`."""
    own = template.with_suffix(".js")
    scripts = [_read(path) for path in (_CHARTS, _FOLDER / "page_parts.js", own)] if own.exists() else []
    return (
        _templates(template.parent)
        .get_template(template.name)
        .render(
            **values,
            data=_embedded(data or {}),
            scripts=[Markup(text) for text in scripts],  # noqa: S704  # our own files
            hashes=Markup(" ".join(_policy_hash(text) for text in scripts) or "'none'"),  # noqa: S704
            charts_style=Markup(_read(_CHARTS_STYLE)),  # noqa: S704
        )
    )


@functools.cache
def _templates(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible_on_page,
        loader=jinja2.FileSystemLoader([folder, _FOLDER]),
    )


@functools.cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that no HTML parser reads as more than text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704


def _policy_hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
