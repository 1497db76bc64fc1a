"""Inspect, lm-eval and our own evaluation play the same tasks with the same two models:
`posttrain compare` comes to the same verdict whichever of them wrote the files.

The models are a script behind an endpoint. What it answers depends on the model, the seed and the
task, so that every tool sees the same plays. The tools are real processes; whatever they would ask
of any other host goes to a proxy that nobody may call.
"""

import hashlib
import json
import os
import socketserver
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product

import pytest

from posttrain.data.files import write_jsonl
from posttrain.evals.summary import evaluated_tasks, task_record
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.openai_policy import OpenAiPolicy
from posttrain.worlds.lookups.gold import format_answer, gold_of
from posttrain.worlds.toy.domain import ToyDomain
from tests.conftest import REPOSITORY
from tests.console import posttrain
from tests.limits import limits_of
from tests.rollout.openai_endpoint import Endpoint, answer_of
from tests.worlds_of import toy_params

pytestmark = [pytest.mark.needs_foreign, pytest.mark.xdist_group("foreign")]

INSTALLED = REPOSITORY / "infra" / "foreign" / ".venv"
WRONG_OF_100 = {"before": 60, "after": 15}
SEEDS = (1, 2)
REFUSING = 3  # a seed with which the endpoint answers all but one task
NUM_TASKS = 40

INSPECT_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import exact

@task
def shops():
    return Task(dataset=json_dataset("tasks.jsonl", FieldSpec(input="question", target="answer")), scorer=exact())
"""
LM_EVAL_TASK = """
task: shops
dataset_path: json
dataset_kwargs: {data_files: {test: tasks.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def is_wrong(model, seed, question):
    drawn = hashlib.sha256(f"{model} {seed} {question}".encode()).digest()
    return int.from_bytes(drawn) % 100 < WRONG_OF_100[model]


@pytest.fixture(scope="module")
def tasks():
    sizes = dict.fromkeys(("num_sft_tasks", "num_rl_tasks", "num_dev_tasks", "num_test_tasks"), 1)
    domain = ToyDomain(toy_params(max_difficulty=3, **sizes))
    answerable = (task for task in domain.tasks("test", 2 * NUM_TASKS) if gold_of(task).asks is None)
    return domain, list(islice(answerable, NUM_TASKS))


@pytest.fixture(scope="module")
def endpoint(tasks):
    by_question = {task.messages[1].content: task for task in tasks[1]}

    def script(_, body):
        """Policy that, where tools are offered, calls what it needs before it answers."""
        question = next(message["content"] for message in body["messages"] if message["role"] == "user")
        gold = gold_of(by_question[question])
        if body["seed"] == REFUSING and question == tasks[1][0].messages[1].content:
            return 400
        if "tools" in body and gold.calls and body["messages"][-1]["role"] != "tool":
            calls = [
                (call.name, json.dumps({name: accepted[0] for name, accepted in call.arguments.items()}))
                for call in gold.calls
            ]
            return answer_of(calls=calls, finish="tool_calls")
        wrong = is_wrong(body["model"], body["seed"], question)
        return answer_of("ANSWER: nothing" if wrong else format_answer(gold.answer))

    server = Endpoint(script)
    yield server
    server.stop()


class Refusal(socketserver.StreamRequestHandler):
    """A proxy's, which writes down who was asked."""

    def handle(self):
        self.server.asked.add(self.rfile.readline().split()[1].decode())
        self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(scope="module")
def proxy():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        server.asked = set()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def played(tasks, endpoint, proxy, tmp_path_factory):
    """A folder with the files of every tool."""
    folder = tmp_path_factory.mktemp("foreign")
    rows = [{"question": task.messages[1].content, "answer": format_answer(gold_of(task).answer)} for task in tasks[1]]
    write_jsonl(folder / "tasks.jsonl", rows)
    (folder / "shops.py").write_text(INSPECT_TASK)
    (folder / "shops.yaml").write_text(LM_EVAL_TASK)
    proxy_url = "http://{}:{}".format(*proxy.server_address)
    environment = {
        "PATH": f"{INSTALLED}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy_url),
        "NO_PROXY": "127.0.0.1",
        "SCRIPTED_BASE_URL": endpoint.base_url,
        "SCRIPTED_API_KEY": "any",
        "OPENAI_API_KEY": "any",
        "HF_HUB_OFFLINE": "1",
        "INSPECT_EVAL_LOG_FILE_PATTERN": "{model}",
    }

    def run(command):
        ended = subprocess.run(
            command.split(), cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"

    commands = [
        "lm-eval run --model local-chat-completions --apply_chat_template --include_path . --tasks shops"
        f" --log_samples --output_path lm-eval-{seed} --model_args"
        f" model={model},base_url={endpoint.base_url}/chat/completions,seed={seed},num_concurrent=8"
        for model, seed in product(WRONG_OF_100, SEEDS)
    ]
    models = ",".join(f"openai-api/scripted/{model}" for model in WRONG_OF_100)
    commands += [
        f"inspect eval shops.py --model {models} --seed {seed} --no-fail-on-error"
        f" --display none --log-dir inspect-{seed}"
        for seed in (*SEEDS, REFUSING)
    ]
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(run, command) for command in commands]
        play_ourselves(*tasks, endpoint, folder)
        for one in ended:
            one.result()
    return folder


def play_ourselves(domain, tasks, endpoint, folder):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_BASE_URL", endpoint.base_url)
        environment.setenv("OPENAI_API_KEY", "any")
        for model, seed in product(WRONG_OF_100, SEEDS):
            policy = OpenAiPolicy(model, temperature=0.0, max_new_tokens=100)
            greedy = run_episodes(
                policy, tasks, domain=domain, limits=limits_of(8, 100, 10_000), seeds=[seed] * len(tasks)
            )
            evaluated = evaluated_tasks(tasks, greedy, [], num_samples=0)
            write_jsonl(folder / f"{model}-{seed}.tasks.jsonl", map(task_record, evaluated))


def names(played, tool, seeds):
    """Arguments of `posttrain compare`: for each model the files of its seeds, with commas
    between."""
    pattern = {"ours": "{}-{}.tasks.jsonl", "Inspect": "inspect-{1}/*{0}.eval", "lm-eval": "lm-eval-{1}/{0}/samples_*"}
    files = [[*played.glob(pattern[tool].format(model, seed))] for model in WRONG_OF_100 for seed in seeds]
    assert [len(found) for found in files] == [1] * len(files)
    each = [str(found) for [found] in files]
    return [",".join(each[: len(seeds)]), ",".join(each[len(seeds) :])]


def compared(played, tool, seeds):
    file = played / "compared.json"
    ended = posttrain("compare", *names(played, tool, seeds), "--json", file)
    assert ended.exit_code == 0, ended.stderr
    baseline, other = json.loads(file.read_text())["settings"]
    return baseline, other, ended.stdout


@pytest.mark.parametrize("seeds", [SEEDS, SEEDS[:1]], ids=["two seeds", "one seed"])
@pytest.mark.parametrize("tool", ["Inspect", "lm-eval"])
def test_the_verdict_is_that_of_our_own_records_of_the_same_plays(played, tool, seeds):
    ours, theirs = (compared(played, each, seeds) for each in ("ours", tool))
    assert theirs[0]["success"] == pytest.approx(ours[0]["success"])
    assert theirs[1]["success"] == pytest.approx(ours[1]["success"])
    assert theirs[1]["difference"] == pytest.approx(ours[1]["difference"])


def test_our_own_records_say_what_the_script_answered(played, tasks):
    questions = [task.messages[1].content for task in tasks[1]]
    baseline, other, _ = compared(played, "ours", SEEDS)
    for setting, model in ((baseline, "before"), (other, "after")):
        right = [not is_wrong(model, seed, question) for seed in SEEDS for question in questions]
        assert setting["success"]["mean"] == pytest.approx(sum(right) / len(right))
    difference = other["difference"]
    assert (difference["word"], difference["num_tasks"], difference["num_seeds"]) == ("better", NUM_TASKS, [2, 2])
    assert compared(played, "ours", SEEDS[:1])[1]["difference"]["word"] == "needs more"


def test_a_play_that_the_endpoint_refused_is_left_out_and_it_is_said(played):
    _, other, said = compared(played, "Inspect", (REFUSING,))
    assert other["difference"]["num_tasks"] == NUM_TASKS - 1
    assert said.count("1 of 40 plays ended in an error or have no score: they are left out, and are no failures") == 2


def test_a_folder_of_lm_eval_is_its_samples(played):
    [file] = names(played, "lm-eval", SEEDS[:1])[:1]
    ended = posttrain("compare", file, played / "lm-eval-1" / "before")
    assert "+0.0" in ended.stdout, ended.stderr


def test_no_tool_asks_another_host(played, proxy):
    assert proxy.asked == set()
