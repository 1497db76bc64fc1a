"""A catalogue of tools: its words, its file, and what is imported into it."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from posttrain.retrieval.catalogue import Catalogue, Question, read_catalogue, words, write_catalogue
from posttrain.retrieval.quality import quality
from posttrain.retrieval.rankers import WordRanker
from posttrain.retrieval.sources import read_bfcl, read_openapi, read_schema_file
from posttrain.runtime.exits import DataError
from tests.console import posttrain
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy
from tests.retrieval.catalogues import small_catalogue, tool


def test_names_are_taken_apart_and_scripts_without_spaces_into_characters_and_pairs():
    assert words("getTax_2 HTTPServer.run") == ["get", "tax", "2", "http", "server", "run"]
    assert words("查税率?") == ["查", "税", "率", "查税", "税率"]


def test_the_text_of_a_tool_has_its_name_its_description_and_its_parameters():
    text = "get weather. Forecast of the weather in a city. city: name of the city"
    assert small_catalogue().tools[0].text == text


def test_of_two_tools_with_one_name_the_earlier_stands_and_a_question_needs_known_tools():
    first = Catalogue((tool("a", "one"),), (Question("?", ("a",), "x"),))
    both = first.with_more(
        [tool("a", "two"), tool("b")],
        [Question("?", ("a",), "x"), Question("of b", ("b", "a"), "x"), Question("of c", ("c",), "x")],
    )
    assert [(one.name, one.description) for one in both.tools] == [("a", "one"), ("b", "")]
    assert [one.text for one in both.questions] == ["?", "of b"]


def test_a_catalogue_is_read_as_it_was_written(tmp_path):
    write_catalogue(small_catalogue(), tmp_path)
    assert read_catalogue(tmp_path) == small_catalogue()
    assert read_catalogue(tmp_path / "nothing") == Catalogue()


def test_a_damaged_catalogue_is_read_or_refused_with_what_to_do(tmp_path):
    write_catalogue(small_catalogue(), tmp_path / "clean")
    num_refused = 0
    for number in range(NUM_DAMAGES):
        for name in ("catalogue.jsonl", "questions.jsonl"):
            folder = fresh_copy(tmp_path / "clean", tmp_path / "damaged")
            what = damage(folder / name, number)
            read = lambda: read_catalogue(folder)  # noqa: B023, E731
            # DVC keeps the file's hash; a changed letter is another text
            texts = lambda found: all(one.text and one.source for one in found.tools)  # noqa: E731
            num_refused += not check(read, small_catalogue(), name=folder.name, what=what, is_part=texts)
    assert num_refused > NUM_DAMAGES // 3


def test_a_tool_that_stands_twice_is_refused_by_its_name(tmp_path):
    write_catalogue(Catalogue((tool("a"), tool("a", "again"))), tmp_path)
    with pytest.raises(DataError, match="'a' twice"):
        read_catalogue(tmp_path)


def bfcl_folder(folder: Path) -> Path:
    parameters = {"type": "dict", "properties": {"r": {"type": "float"}}}
    ask = lambda number, names: {  # noqa: E731
        "id": f"q{number}",
        "question": [[{"role": "user", "content": f"question {number}"}]],
        "function": [{"name": name, "description": name, "parameters": parameters} for name in names],
    }
    files = {
        "BFCL_v4_multiple.json": [ask(1, ["area", "volume"]), ask(2, ["volume"])],
        "BFCL_v4_simple_python.json": [ask(3, ["length"])],
        "BFCL_v4_irrelevance.json": [ask(4, ["weight"])],
        "possible_answer/BFCL_v4_multiple.json": [{"id": "q1", "ground_truth": [{"volume": {"r": [1]}}]}],
    }
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_bfcl_gives_functions_of_all_files_and_questions_whose_function_is_known(tmp_path):
    read = read_bfcl(bfcl_folder(tmp_path))
    assert [(one.name, one.source) for one in read.tools] == [
        ("weight", "bfcl/irrelevance"),
        ("area", "bfcl/multiple"),
        ("volume", "bfcl/multiple"),
        ("length", "bfcl/simple_python"),
    ]
    assert [(one.text, one.tools) for one in read.questions] == [
        ("question 1", ("volume",)),
        ("question 3", ("length",)),
    ]
    assert read.tools[0].schema["function"]["parameters"] == {"type": "object", "properties": {"r": {"type": "number"}}}
    with pytest.raises(DataError, match="no file BFCL_v4_NAME"):
        read_bfcl(tmp_path / "possible_answer" / "nothing")


def test_bfcls_own_files_have_1438_functions_and_1911_questions(shared_data):
    read = read_bfcl(shared_data / "bfcl")
    needed = Counter(name for one in read.questions for name in one.tools)
    assert (len(read.tools), len(read.questions), len({one.text for one in read.questions})) == (1438, 1911, 1791)
    assert (len(needed), sum(count == 1 for count in needed.values())) == (728, 467)
    found = WordRanker(read.tools).rank([one.text for one in read.questions[::10]], 10)
    ranked = [[read.tools[place].name for place in places] for places in found.tolist()]
    assert quality(ranked, read.questions[::10])["recall_at_10"] > 0.8


OPENAPI = """
openapi: 3.1.0
paths:
  /pets/{id}:
    parameters: [{name: id, in: path, required: true, schema: {type: integer}}]
    get: {summary: Show a pet., parameters: [{$ref: '#/components/parameters/lang'}]}
    put:
      operationId: update pet
      description: Change it
      requestBody: {content: {application/json: {schema: {$ref: '#/components/schemas/Pet'}}}}
components:
  parameters: {lang: {name: lang, in: query, description: of the answer, schema: {type: string}}}
  schemas:
    Pet: {type: object, required: [name], properties: {name: {type: string}, child: {$ref: '#/components/schemas/Pet'}}}
"""


def test_each_operation_of_an_openapi_file_is_a_function(tmp_path):
    (tmp_path / "pets.yaml").write_text(OPENAPI)
    show, update = read_openapi(tmp_path / "pets.yaml")
    assert (show.name, show.description, show.source) == ("get_pets_id", "Show a pet", "openapi/pets")
    parameters = show.schema["function"]["parameters"]
    assert parameters["properties"]["lang"] == {"type": "string", "description": "of the answer"}
    assert parameters["required"] == ["id"]
    assert update.name == "update_pet"
    changed = update.schema["function"]["parameters"]
    assert (list(changed["properties"]), changed["required"]) == (["id", "name", "child"], ["id", "name"])


@pytest.mark.parametrize(
    ("text", "why"),
    [("swagger: '2.0'", "'2.0'"), ("[1", "cannot be read"), (OPENAPI.replace("Pet:", "Cat:"), "leads nowhere")],
)
def test_another_file_than_openapi_3_is_refused(tmp_path, text, why):
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(DataError, match=why):
        read_openapi(tmp_path / "file.yaml")


def test_what_is_no_schema_is_refused_with_its_file(tmp_path):
    (tmp_path / "tools.json").write_text('[{"name": "a b", "parameters": {}}]')
    with pytest.raises(DataError, match=r"file/tools.*'a b'"):
        read_schema_file(tmp_path / "tools.json")


def test_the_command_imports_every_kind_of_source_into_one_catalogue(tmp_path):
    (tmp_path / "pets.yaml").write_text(OPENAPI)
    (tmp_path / "tools.json").write_text('[{"name": "area", "parameters": {}}, {"name": "own", "parameters": {}}]')
    server = Path(__file__).parents[1] / "worlds/mcp_server.py"
    target = tmp_path / "tools"
    for kind, source, num_new in (
        ("bfcl", bfcl_folder(tmp_path / "bfcl"), 4),
        ("openapi", tmp_path / "pets.yaml", 2),
        ("schemas", tmp_path / "tools.json", 1),
        ("world", "toy", 8),
        ("mcp", f"{sys.executable} {server}", None),
        ("bfcl", tmp_path / "bfcl", 0),
    ):
        ended = posttrain("tools", "import", kind, source, "--to", target)
        assert ended.exit_code == 0, ended.stderr
        assert num_new is None or f"{num_new} tools and" in ended.stdout
    ended = posttrain("tools", "import", "world", "toyy", "--to", target)
    assert (ended.exit_code, "Did you mean 'toy'?" in ended.stderr) == (78, True)
    read = read_catalogue(target)
    assert {"volume", "get_pets_id", "own", "get_shelf", "add", "digits"} <= {one.name for one in read.tools}
    assert len(read.questions) == 2
