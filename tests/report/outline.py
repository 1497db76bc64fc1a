"""Parser of a page, for tests."""

import json
from html.parser import HTMLParser
from typing import Any


class Outline(HTMLParser):
    """Tags with attributes, the text that is shown, and the data for the page's script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: Any = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script" and self.tags[-1][1].get("type") == "application/json":
            self.data = json.loads(data)
        elif self.cdata_elem is None:  # neither script nor style
            self.text += data.replace("\N{NO-BREAK SPACE}", " ")
