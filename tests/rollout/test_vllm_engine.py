import asyncio
import time

import pytest
import torch

from posttrain.models.lora import add_lora
from posttrain.models.params import LoraAdapter
from posttrain.rollout.engines import trainer_weights, vllm_engine
from posttrain.rollout.engines.choice import make_engine, server_urls
from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest
from posttrain.rollout.engines.vllm_engine import Router, VllmEngine
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.rollout.tiny_models import reference_logprobs, tiny_model
from tests.rollout.token_server import TokenServer
from tests.waiting import wait_until

STOP = frozenset({7})
PROMPTS = [[10 + index, 3, 5, index % 60] for index in range(20)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(vllm_engine, "_WATCH_S", 0.05)
    monkeypatch.setattr("posttrain.rollout.engines.vllm_server._HEALTH_S", 0.3)


@pytest.fixture
def servers():
    started = [TokenServer(), TokenServer()]
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def make(servers, tmp_path):
    """`make(model, urls)` gives an engine, closed at the end."""
    engines = []

    def engine_of(model, urls=None, **settings):
        named = urls if urls is not None else [server.url for server in servers]
        settings = {"timeout_s": 2.0, "patience_s": 2.0} | settings
        engine = VllmEngine(
            model, urls=lambda: named, check_prompts=PROMPTS, stop_ids=STOP, folder=tmp_path / "weights", **settings
        )
        engines.append(engine)
        return engine

    yield engine_of
    for engine in engines:
        engine.close()


def write_all(engine, count=16, num_turns=2, temperature=1.0, between=None):
    """Play that many episodes of some turns each; the rows and log-probs of each."""

    async def one(index):
        token_ids, logprobs = [10 + index, 20], [None, None]
        for turn in range(num_turns):
            generation = await engine.generate(GenerateRequest(f"e{index}", token_ids, 9, temperature, index, STOP))
            token_ids = [*token_ids, *generation.token_ids, 1, 2]
            logprobs = [*logprobs, *generation.logprobs, None, None]
            if between and turn == 0:
                await asyncio.to_thread(between)
        engine.release(f"e{index}")
        return token_ids, logprobs

    async def gather():
        return await asyncio.gather(*[one(index) for index in range(count)])

    return asyncio.run(gather())


def worst_gap(model, written):
    gaps = []
    for token_ids, logprobs in written:
        expected = reference_logprobs(model, token_ids)
        gaps += [
            abs(value - float(expected[place - 1, token_ids[place]]))
            for place, value in enumerate(logprobs)
            if value is not None
        ]
    return max(gaps)


def test_log_probs_are_those_of_the_trainers_weights_after_every_update(make, servers, tmp_path):
    model = tiny_model("qwen3")
    engine = make(model)
    assert worst_gap(model, write_all(engine)) < 1e-4
    for version in (1, 2, 3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.refresh_weights()
        assert engine.policy_version == version
        assert worst_gap(model, write_all(engine)) < 1e-4
    assert min(server.num_messages for server in servers) > 0, "both wrote"
    kept = sorted(path.name.rpartition("-")[2] for path in (tmp_path / "weights").iterdir())
    assert kept == ["2", "3"], "the last two versions"


def test_weights_that_are_sent_are_in_no_file_and_are_those_of_the_trainer_after_every_update(make, servers, tmp_path):
    model = tiny_model("qwen3").to(torch.float32)
    engine = make(model, stream="gloo")
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        engine.refresh_weights()
        assert worst_gap(model, write_all(engine)) < 1e-4
    assert min(server.num_messages for server in servers) > 0
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("mood", ["is lost", "dead", "hangs"])
def test_a_server_that_is_lost_while_weights_are_sent_holds_up_no_other_and_gets_the_next(make, servers, mood):
    model = tiny_model("qwen3")
    engine = make(model, stream="gloo")
    loads = servers[1].num_loads
    servers[1].mood = mood
    if mood == "dead":
        servers.pop().stop()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.3)
    engine.refresh_weights()
    assert engine._router.up == (servers[0].url,)
    assert worst_gap(model, write_all(engine)) < 1e-4
    if mood != "dead":
        servers[1].mood = "well"
        time.sleep(0.3)  # several looks: its weights can only come with an update
        assert engine._router.up == (servers[0].url,)
        engine.refresh_weights()
        assert len(engine._router.up) == 2
        assert servers[1].num_loads > loads
        assert worst_gap(model, write_all(engine)) < 1e-4


@pytest.mark.parametrize("stream", [None, "gloo"])
def test_colocated_servers_are_asleep_from_the_play_to_the_next_weights(make, servers, stream):
    model = tiny_model("qwen3")
    for server in servers:
        server.is_asleep = True
    engine = make(model, stream=stream, is_colocated=True)
    for _ in range(2):
        assert worst_gap(model, write_all(engine)) < 1e-4
        engine.sleep()
        time.sleep(0.2)  # several looks, which wake nobody
        assert [server.is_asleep for server in servers] == [True, True]
        assert engine._router.up == ()
        with torch.no_grad():
            model.lm_head.weight.mul_(1.1)
        engine.refresh_weights()
        assert [server.is_asleep for server in servers] == [False, False]


def test_an_adapter_is_served_under_a_name_of_its_own_and_the_old_one_goes(make, servers):
    base = tiny_model("qwen3", seed=99)  # what the servers were started with
    lora = LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj", "down_proj"])
    model = add_lora(tiny_model("qwen3", seed=99), lora, seed=1).eval()
    engine = make(model)
    for _ in range(3):
        before = {name for server in servers for name in server.adapters}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(0.3 * torch.randn_like(parameter) if "lora_" in name else 0)
        engine.refresh_weights()
        assert [len(server.adapters) for server in servers] == [1, 1]
        assert not before & servers[0].adapters.keys()
        written = write_all(engine)
        assert worst_gap(model, written) < 1e-4
        assert worst_gap(base, written) > 0.1
    for server in servers:
        assert server._model.state_dict().keys() == base.state_dict().keys()
        assert all(tensor.equal(base.state_dict()[name]) for name, tensor in server._model.state_dict().items())


def test_an_episode_stays_with_its_server(make, servers):
    write_all(make(tiny_model("qwen3")), num_turns=4)
    episodes = [{first for first in server.episodes_seen if first[1] == 20} for server in servers]
    assert not episodes[0] & episodes[1]
    assert len(episodes[0] | episodes[1]) == 16


def test_no_route_is_kept_of_an_episode_that_is_over(make):
    engine = make(tiny_model("qwen3"))
    write_all(engine)
    wait_until(lambda: not engine._router._server_of)


def test_weights_that_take_long_to_write_are_not_mistaken_for_the_old_ones(make, monkeypatch):
    """Servers are looked at several times while the file is written."""
    model = tiny_model("qwen3")
    engine = make(model)
    write = trainer_weights.write_weights

    def write_slowly(*arguments):
        time.sleep(0.5)
        return write(*arguments)

    monkeypatch.setattr(trainer_weights, "write_weights", write_slowly)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.3)
    engine.refresh_weights()
    assert worst_gap(model, write_all(engine)) < 1e-4


def test_a_server_that_says_it_took_the_weights_and_did_not_stops_the_step(make, servers):
    engine = make(tiny_model("qwen3"))
    servers[0].mood = "forgets"
    with torch.no_grad():
        engine._model.lm_head.weight.mul_(1.3)
    with pytest.raises(ConfigurationError, match=r"writes with others: on \d+ of 20 fixed prompts"):
        engine.refresh_weights()


@pytest.mark.parametrize("mood", ["hangs", "garbage", "dead"])
def test_a_server_that_hangs_dies_or_writes_garbage_is_left_out_and_another_writes(make, servers, mood):
    model = tiny_model("qwen3")
    engine = make(model, timeout_s=0.5)

    def spoil():
        if mood != "dead":
            servers[1].mood = mood
        elif len(servers) == 2:  # the first of the episodes to come here
            servers.pop().stop()

    written = write_all(engine, between=spoil)
    assert len(written) == 16
    assert worst_gap(model, written) < 1e-4


def test_a_server_that_comes_while_episodes_run_gets_the_weights_and_takes_part(make, servers):
    model = tiny_model("qwen3")
    urls = [servers[0].url]
    engine = make(model, urls)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.2)
    engine.refresh_weights()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.2)  # the trainer learns on while the old weights play
    urls.append(servers[1].url)
    wait_until(lambda: servers[1].url in engine._router.up)
    write_all(engine)
    assert servers[1].num_loads == 1
    assert servers[1].num_messages > len(PROMPTS)


def test_a_server_that_was_started_anew_gets_the_weights_again(make, servers):
    model = tiny_model("qwen3")
    engine = make(model)
    old = servers.pop()
    old.stop()
    write_all(engine)
    servers.append(TokenServer(port=int(old.url.rpartition(":")[2])))
    wait_until(lambda: old.url in engine._router.up)
    assert worst_gap(model, write_all(engine)) < 1e-4
    assert servers[1].num_loads == 1


def test_without_any_server_the_message_is_lost_with_the_reason(make, servers):
    engine = make(tiny_model("qwen3"), patience_s=0.2)
    for server in servers:
        server.mood = "garbage"
    with pytest.raises(EngineFailed, match=r"gave no message .*'logprobs'"):
        asyncio.run(engine.generate(GenerateRequest("e", [1, 2], 4, 1.0, 1, STOP)))


def test_no_server_at_the_start_is_an_interruption_that_names_them(make):
    with pytest.raises(Interrupted, match=r"none of the vLLM servers http://127.0.0.1:9 took the weights within 0.2 s"):
        make(tiny_model("qwen3"), ["http://127.0.0.1:9"], patience_s=0.2)


def test_a_refusal_is_our_bug_and_not_a_servers_failure(make, servers):
    engine = make(tiny_model("qwen3"))
    for server in servers:
        server.mood = "refuses"
    with pytest.raises(ConfigurationError, match="refuses with 400"):
        asyncio.run(engine.generate(GenerateRequest("e", [1, 2], 4, 1.0, 1, STOP)))


def test_weights_may_not_change_while_a_message_is_written(make, servers):
    engine = make(tiny_model("qwen3"))
    for server in servers:
        server.mood = "hangs"

    async def write_and_refresh():
        writing = asyncio.create_task(engine.generate(GenerateRequest("e", [1, 2], 4, 1.0, 1, STOP)))
        await asyncio.to_thread(wait_until, lambda: engine._in_flight == 1)
        with pytest.raises(RuntimeError, match="1 messages are being written"):
            engine.refresh_weights()
        writing.cancel()

    asyncio.run(write_and_refresh())


def test_routing_is_sticky_then_least_in_flight():
    router = Router()
    assert router.choose("a") is None
    router.set_up("one")
    router.set_up("two")
    assert [router.choose(episode) for episode in "aba"] == ["one", "two", "one"]
    router.finish("one")
    router.finish("one")
    assert router.choose("c") == "one"
    router.set_down("one")
    assert router.choose("a") == "two", "its server is down"
    assert router.choose("d", avoid=["two"]) == "two", "the only one there is"
    router.set_up("one")
    assert router.choose("a") == "two", "it stays where it went"


def test_the_environment_names_engine_and_servers(monkeypatch, tmp_path):
    monkeypatch.setenv("POSTTRAIN_ENGINE", "vlm")
    with pytest.raises(ConfigurationError, match="'vlm'; there are torch and vllm"):
        make_engine(tiny_model("qwen3"), max_context_tokens=10, check_prompts=list, stop_ids=STOP)
    monkeypatch.delenv("POSTTRAIN_VLLM_URLS", raising=False)
    with pytest.raises(ConfigurationError, match="names no server"):
        server_urls()
    monkeypatch.setenv("POSTTRAIN_VLLM_URLS", "http://a:1/,http://b:2,http://a:1")
    assert server_urls() == ["http://a:1", "http://b:2"]
    monkeypatch.setenv("POSTTRAIN_VLLM_URLS", f"@{tmp_path}/servers")
    (tmp_path / "servers").write_text("http://c:3\nhttp://d:4\n")
    assert server_urls() == ["http://c:3", "http://d:4"]


def test_how_weights_get_to_servers_is_checked(monkeypatch):
    monkeypatch.setenv("POSTTRAIN_ENGINE", "vllm")
    for sync, why in (("ipc", "there are disk, gloo and nccl"), ("nccl", "there is no GPU")):
        monkeypatch.setenv("POSTTRAIN_VLLM_SYNC", sync)
        with pytest.raises(ConfigurationError, match=why):
            make_engine(None, max_context_tokens=9, check_prompts=list, stop_ids=STOP)


def test_an_engine_in_a_process_with_a_shard_is_refused(monkeypatch):
    for name, value in {"LOCAL_RANK": "0", "ACCELERATE_USE_FSDP": "true", "POSTTRAIN_ENGINE": "torch"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"FSDP leaves none all of them: start vLLM servers .* or take"):
        make_engine(tiny_model("qwen3"), max_context_tokens=10, check_prompts=list, stop_ids=STOP)
