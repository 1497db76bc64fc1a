from posttrain.types import Task
from posttrain.world_check.policies import adversaries, made_arguments
from posttrain.worlds.scripts import call, say
from posttrain.worlds.tools import Tool


def tool_of(name, required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, "A tool.", parameters, print)


def test_arguments_are_golds_where_it_has_one_of_that_name_and_else_any_that_fit():
    tool = tool_of(
        "search",
        ("code", "side", "many", "when", "each", "where", "either"),
        code={"type": "string"},
        side={"type": "string", "enum": ["north", "south"]},
        many={"type": "integer", "minimum": 3},
        when={"type": ["null", "string"]},
        each={"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        where={"type": "object", "properties": {"x": {"type": "number"}, "y": {}}, "required": ["x"]},
        either={"anyOf": [{"const": 5}, {"type": "string"}]},
        page={"type": "integer"},
        size={"type": "integer"},
    )
    assert made_arguments(tool, {"code": "9.N", "page": 2, "other": 1}) == {
        "code": "9.N", "side": "north", "many": 3, "when": None, "each": [True, True], "where": {"x": 1},
        "either": 5, "page": 2,
    }  # fmt: skip


def task_offering(*names):
    return Task("t", "dev", (), names)


GOLD = [say("May I?"), call("look", {"box": 4}), say("It is open.")]
TOOLS = {"look": tool_of("look", box={}), "smell": tool_of("smell", ("box",), box={"type": "integer"})}


def test_every_other_tool_is_called_before_the_experts_first_call_with_what_the_expert_knew():
    name = "also calls every other tool"
    written = adversaries(task_offering("look", "smell"), GOLD, TOOLS)
    assert written[name] == [GOLD[0], call("smell", {"box": 4}), *GOLD[1:]]
    assert len(written) == 5
    assert name not in adversaries(task_offering("look"), GOLD, TOOLS)


def test_where_the_expert_makes_no_call_there_is_nothing_to_leave_out():
    assert list(adversaries(task_offering("look"), [say("5")], TOOLS).values()) == [[call("look", {}), say("5")]]
