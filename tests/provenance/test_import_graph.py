"""Files of a tree that one of them imports, through any number of files."""

from pathlib import Path

import pytest

from posttrain.provenance.import_graph import all_imports, imports_of, is_empty

FILES = {
    "ours/__init__.py": "from ours.greeting import HELLO\n",
    "ours/greeting.py": "HELLO = 'hello'\n",
    "ours/scores.py": (
        "import json\nimport ours.plain\nfrom . import near\nfrom .deep.down import thing\n"
        "def score():\n    from ours import inside\n    return inside\n"
    ),
    "ours/plain.py": "import posttrain.config.params\nfrom alone import f\n",
    "ours/near.py": "from .missing import nothing\nimport numpy.linalg\n",
    "ours/inside.py": "import ours.scores\n",
    "ours/deep/__init__.py": '"""Nothing happens here."""\n',
    "ours/deep/down.py": "from .. import plain\nfrom ..near import *\n",
    "ours/unused.py": "import ours.greeting\n",
    "ours/broken.py": "def (:\n",
    "alone.py": "",
    "posttrain/config/params.py": "import posttrain.elsewhere\n",
    "posttrain/elsewhere.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_imports_are_followed_at_the_top_inside_functions_and_relative_ones(tree: Path):
    needed = {"__init__", "greeting", "plain", "near", "inside", "scores", "deep/__init__", "deep/down"}
    assert all_imports(tree, "ours/scores.py") == {"alone.py", *(f"ours/{name}.py" for name in needed)}


def test_a_package_around_a_module_is_imported_with_it(tree: Path):
    assert set(imports_of(tree, "ours/inside.py")) == {"ours/__init__.py", "ours/scores.py"}


def test_the_runner_is_neither_counted_nor_followed(tree: Path):
    assert all_imports(tree, "ours/plain.py") == {"alone.py"}


def test_a_file_that_is_no_python_imports_nothing_and_is_not_empty(tree: Path):
    assert all_imports(tree, "ours/broken.py") == set()
    assert not is_empty(tree, "ours/broken.py")


def test_a_package_with_a_docstring_alone_is_empty(tree: Path):
    assert [is_empty(tree, path) for path in ("ours/deep/__init__.py", "alone.py", "ours/__init__.py")] == [
        True,
        True,
        False,
    ]
