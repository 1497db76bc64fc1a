"""A world in TRL's own GRPOTrainer: each episode earns there what it earns in our own loop."""

import json
from dataclasses import replace

import pytest
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trl_peer import RESPONSE_TEMPLATE
from posttrain.export.trl_world import TrlWorld
from posttrain.export.world_folder import SAY, ExportedWorld, write_world_folder
from posttrain.models.codec import ChatCodec
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, StopReason, ToolCall
from posttrain.worlds.catalog import example_params, score_names
from posttrain.worlds.text_env import Step, TextEnvDomain
from tests.tiny import KNOBS

STEPS, GROUP = 5, 4


def exported(folder, world):
    write_world_folder(world, folder, "trl")
    return TrlWorld(folder)


def written(trajectory):
    """The agent's messages; one that a user answered is a call of `say`."""
    for message, following in zip(trajectory.messages, [*trajectory.messages[1:], None], strict=True):
        if message.role == "assistant":
            is_answered = following is not None and following.role == "user"
            call = ToolCall("", "say", f'{{"text":"{message.content}"}}')
            yield replace(message, content="", tool_calls=(call,)) if is_answered else message


class Replay:
    """Writes TRL's messages in our own loop: a call of `say` is a message without one."""

    def __init__(self, completion, is_cut):
        self.messages = [message_of(one) for one in completion if one["role"] == "assistant"]
        self.is_cut = is_cut

    async def reply(self, episode):
        if not self.messages:
            return Reply(None, StopReason.TOKEN_LIMIT)
        message = self.messages.pop(0)
        is_last = self.is_cut and not self.messages
        return Reply(message, StopReason.TOKEN_LIMIT if is_last else None)

    def release(self, episode):
        pass


def message_of(one):
    calls = [call["function"] for call in one.get("tool_calls") or []]
    if [call["name"] for call in calls] == ["say"]:
        return Message("assistant", calls[0]["arguments"]["text"])
    made = tuple(ToolCall("", call["name"], json.dumps(call["arguments"])) for call in calls)
    return Message("assistant", one.get("content") or "", one.get("reasoning_content") or None, made)


def replayed(world, task, completion, is_cut):
    policy = Replay(completion, is_cut)
    [played] = run_episodes(policy, [task], domain=world.domain, limits=world.limits, seeds=[0])
    return world.reward.score(played, task)


class ScriptedTrainer(GRPOTrainer):
    """Writes the messages of the flawed expert's episodes, so that there are calls to run and
    answers to grade, and samples from the model where such an episode has none left."""

    codec: ChatCodec
    scripts: dict[str, list]
    begun: list

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        scripts = [self.script_of(ids) for ids in prompt_ids]
        given = [next(script, None) for script in scripts]
        left = [ids for ids, message in zip(prompt_ids, given, strict=True) if message is None]
        sampled = iter(super()._generate_single_turn(left, *args, **kwargs)[0] if left else [])
        written = [next(sampled) if one is None else self.codec.encode_assistant(one) for one in given]
        self.begun += [([*ids, *own], *one) for ids, own, one in zip(prompt_ids, written, zip(scripts), strict=True)]
        return written, None

    def script_of(self, ids):
        place = next((at for at, (begin, _) in enumerate(self.begun) if ids[: len(begin)] == begin), None)
        if place is not None:
            return self.begun.pop(place)[1]
        question = self.codec.decode(ids)
        return iter(next(scripts for text, scripts in self.scripts.items() if text in question).pop(0))


def trained(folder, world):
    """The trainer's rewards with what was played, in order."""
    tasks = world.world.tasks("rl")[: 2 * STEPS]
    limits, domain = world.world.limits, world.world.domain
    plays = {}
    for flawless in (True, False):
        policy = expert_policy(domain, is_flawless=flawless, reasoning_frac=0.3)
        again = [task for task in tasks for _ in range(GROUP // 2)]
        played = run_episodes(policy, again, domain=domain, limits=limits, seeds=list(range(len(again))))
        for task, one in zip(again, played, strict=True):
            plays.setdefault(task.task_id, []).append(list(written(one)))
    conversations = [one.messages for one in played]
    tokenizer = train_tokenizer(
        conversations, tool_names=[*domain.tools, "say"], vocab_size=1500, max_length=limits.max_context_tokens
    )
    params = ScratchModel.model_validate(
        {**KNOBS, "type": "scratch", "vocab_size": 1500, "adapter": {"type": "full"}}
        | {"gradient_checkpointing": False, "rows_at_once": None, "dtype": "float32"}
    )
    codec = ChatCodec(tokenizer)
    world._stop_ids = codec.stop_ids
    tokenizer.response_template = RESPONSE_TEMPLATE
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "call.function.arguments +", "(call.function.arguments | tojson) +"
    )
    seen = []

    def reward(completions, completion_ids, environments, task_id, **others):
        values = world.reward(completions, completion_ids, environments, task_id, **others)
        seen.extend(zip(task_id, completions, completion_ids, values, strict=True))
        return values

    rows = [row for row in world.rows("rl") if row["task_id"] in {task.task_id for task in tasks}]
    trainer = ScriptedTrainer(
        model=scratch_model(params, tokenizer=tokenizer, max_context_tokens=limits.max_context_tokens, seed=1),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=2 * GROUP,
            num_generations=GROUP,
            max_completion_length=256,
            max_tool_calling_iterations=limits.max_turns - 1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=world.environments,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.codec, trainer.begun = ChatCodec(tokenizer), []
    # a fifth play of each task is the random model's alone
    by_id = {task.task_id: task for task in tasks}
    trainer.scripts = {by_id[name].messages[-1].content: [*plays[name][:3], []] for name in by_id}
    trainer.train()
    return trainer, by_id, seen


@pytest.mark.needs_trainers
@pytest.mark.parametrize("name", ["toy", "stocks"])
def test_trl_plays_five_steps_and_each_episode_earns_what_it_earns_in_our_loop(tmp_path, name, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    world = exported(tmp_path / "world", name)
    trainer, tasks, seen = trained(tmp_path / "out", world)
    assert (trainer.state.global_step, len(seen)) == (STEPS, 2 * GROUP * STEPS)
    assert len({value for *_, value in seen}) > 3
    for task_id, completion, ids, value in seen:
        ours = replayed(world.world, tasks[task_id], completion, ids[-1] not in world._stop_ids)
        assert value == ours.reward, completion


@pytest.mark.parametrize("name", ["toy", "calculator", "brokerage"])
def test_trl_derives_the_worlds_own_schemas_from_the_methods(tmp_path, name):
    world = exported(tmp_path, name)
    world.rows("rl")
    seen = {}
    for environment in world.environments.values():
        own = [method for method in vars(environment) if not method.startswith("_") and method != "reset"]
        seen |= {method: get_json_schema(getattr(environment(), method)) for method in own}
    tools = {**world.world.domain.tools, "say": SAY} if name != "calculator" else world.world.domain.tools
    assert seen.keys() == tools.keys()
    for method, tool in tools.items():
        found = seen[method]["function"]
        found.pop("return", None)
        assert found == {**tool.schema()["function"], "parameters": {**found["parameters"]}}
        assert found["parameters"]["properties"] == tool.parameters["properties"]
        assert found["parameters"].get("required", []) == list(tool.parameters["required"])


def call_of(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def begun(world, wanted):
    """An environment in which the first rl task with these labels has begun, and the task."""
    rows = world.rows("rl")
    tasks = {task.task_id: task for task in world.world.tasks("rl")}
    row = next(row for row in rows if wanted.items() <= tasks[row["task_id"]].labels.items())
    environment = world.environments[row["environment"]]()
    assert environment.reset(**{key: value for key, value in row.items() if key != "environment"}) is None
    return environment, tasks[row["task_id"]]


def test_a_question_back_is_a_call_of_say_and_the_episode_is_graded_as_ours(tmp_path):
    world = exported(tmp_path, "toy")
    environment, task = begun(world, {"kind": "timing_decision", "difficulty": "2", "shop": "north"})
    answer = environment.say(text="ASK: shop")
    assert json.loads(answer)["user"] in ("north", "北店")
    made = [{"role": "assistant", "content": "", "tool_calls": [call_of("say", text="ASK: shop")]}]
    completion = [*made, {"role": "tool", "name": "say", "content": answer}, {"role": "assistant", "content": "?"}]
    graded = environment._recorder.graded(completion, is_cut=False)
    assert [message.role for message in graded.messages[-3:]] == ["assistant", "user", "assistant"]
    environment, task = begun(world, dict(task.labels))
    environment.say(text="ASK: shop")
    [value] = world.reward([completion], [[1]], [environment], [task.task_id])
    assert value == replayed(world.world, task, completion, False).reward


def test_an_episode_that_was_cut_off_is_graded_and_one_without_its_world_has_its_groups_mean(tmp_path, monkeypatch):
    world = exported(tmp_path, "calculator")
    played = [begun(world, {"kind": "gain"}) for _ in range(3)]
    goal = json.loads(played[0][1].goal)
    called = {"role": "assistant", "content": "", "tool_calls": [call_of("calculate", expression=goal["expression"])]}
    result = {"role": "tool", "name": "calculate", "content": played[0][0].calculate(expression=goal["expression"])}
    answered = [called, result, {"role": "assistant", "content": f"ANSWER: {goal['answer']}"}]
    cut = [called]
    monkeypatch.setattr(played[2][0]._recorder, "_failure", "its server is gone")
    environments, names = [one for one, _ in played], [task.task_id for _, task in played]
    first, second, lost = world.reward([answered, cut, cut], [[1], [1], [1]], environments, names)
    assert first == 1.0
    assert second == pytest.approx(0.05)  # its format is right and it has no answer
    assert lost == (first + second) / 2


class Guesses(TextEnvDomain):
    """A number to guess, by messages alone."""

    def environment(self, index):
        return Guessed(index % 10)


class Guessed:
    def __init__(self, number):
        self.number = number

    async def reset(self):
        return "A number below 10."

    async def step(self, action):
        is_it = action == str(self.number)
        return Step("higher" if int(action) < self.number else "lower", float(is_it), is_it)

    async def close(self):
        pass


def test_an_environment_of_text_opens_behind_the_prompt_and_is_played_by_what_is_said(tmp_path):
    world = exported(tmp_path, "calculator")
    params = example_params("http_env").model_copy(update={"action_format": "text"})
    knobs = world.world.knobs.model_copy(update={"world": params})
    reward = load_reward(world.world.knobs.reward, score_names(Guesses(params, "guesses")))
    world.world = ExportedWorld(knobs, Guesses(params, "guesses"), reward)
    world._extra = {"say": SAY}
    row = world.rows("rl")[7]
    assert row["prompt"][-1] == {"role": "user", "content": ""}
    environment = world.environments[row.pop("environment")]()
    assert environment.reset(**row) == "A number below 10."
    completion = []
    for guess, answer in (("5", "higher"), ("7", None)):
        assert json.loads(environment.say(text=guess))["user"] == answer
        completion.append({"role": "assistant", "content": "", "tool_calls": [call_of("say", text=guess)]})
        completion.append({"role": "tool", "name": "say", "content": json.dumps({"user": answer})})
    assert "over" in environment.say(text="8")
    graded = environment._recorder.graded([*completion, {"role": "assistant", "content": "8"}], is_cut=False)
    assert (graded.outcome.reward, graded.is_strict_success, graded.stop_reason) == (1.0, True, "world_over")
    assert [message.content for message in graded.messages[-4:]] == ["A number below 10.", "5", "higher", "7"]


def test_a_folder_of_something_else_is_not_written_over(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="is no exported world"):
        write_world_folder("toy", tmp_path, "trl")
