"""A small server of Tinker's contract on the loopback interface, which really trains LoRA adapters
of a tiny model with torch: what its SDK 0.38 asks of a service, one request at a time."""

import copy
import json

import numpy as np
import torch
from aiohttp import web
from peft import get_peft_model_state_dict
from safetensors.torch import save
from tinker.proto import tinker_public_pb2 as proto

from posttrain.models.lora import add_lora
from tests.rollout.loopback import LoopbackServer

KEYS = {
    "cross_entropy": {"target_tokens", "weights"},
    "importance_sampling": {"target_tokens", "logprobs", "advantages"},
    "ppo": {"target_tokens", "logprobs", "advantages"},
}


class TinkerServer(LoopbackServer):
    """Serves `base`, with adapters like `adapter` but for the rank and seed that are asked for.
    `mood`: `well`, `no_logprobs` (of samples), `no_stop` (left out of samples), `pickles` (exports
    them), `refuses` (status 400 to what is to be learnt). `requests`: routes that were asked;
    `saved`: weights and optimizer by path; `lives`: the model in training of each id."""

    def __init__(self, base, adapter):
        self.mood, self.requests, self.losses = "well", [], []
        self.base, self.adapter = base, adapter
        self.lives, self.optimizers, self.saved, self.samplers, self.answers = {}, {}, {}, {}, {}
        routes = [web.get("/files/{model}/{file}", self._file)]
        for method in ("get", "post"):
            routes.append(getattr(web, method)("/api/v1/{route:.*}", self._asked))
        super().__init__(routes)

    @property
    def live(self):
        return list(self.lives.values())[-1]

    async def _asked(self, request):
        route = request.match_info["route"]
        self.requests.append(route)
        if route == "retrieve_future":
            answer = self.answers[(await request.json())["request_id"]]
            if isinstance(answer, bytes):
                return web.Response(body=answer, content_type="application/x-protobuf")
            return web.json_response(answer)
        if route == "forward_backward":
            message = proto.ForwardBackwardRequest.FromString(await request.read())
            data = [read_datum(one) for one in message.data]
            unknown = {key for _, values in data for key in values} - KEYS[message.loss_fn]
            if unknown or (self.mood == "refuses" and not message.forward_only):
                return web.json_response({"detail": f"loss_fn_inputs: mask {sorted(unknown)}"}, status=400)
            config = dict(message.loss_fn_config)
            return self._later(self._learn(message.model_id, data, message.loss_fn, config, message.forward_only))
        body = await request.json() if request.can_read_body else {}
        handler = getattr(self, f"_on_{route.replace('/', '_')}", None)
        if route.endswith("/finish") or route == "session_heartbeat":
            return web.json_response({})
        if route.startswith("samplers/"):
            return web.json_response({"sampler_id": route[9:], "base_model": "tiny"})
        if route.endswith("external_weights_urls"):
            names = (
                ["adapter_model.bin"]
                if self.mood == "pickles"
                else ["adapter_config.json", "adapter_model.safetensors"]
            )
            model = route.split("/")[1]
            urls = {name: f"{self.url}/files/{model}/{name}" for name in names}
            return web.json_response({"urls": urls, "expires": "2100-01-01T00:00:00Z"})
        if handler is None:
            return web.json_response({"detail": f"no {route}"}, status=404)
        try:
            return handler(body)
        except (KeyError, ValueError) as error:  # a status of 500 would be asked again for minutes
            return web.json_response({"detail": f"{route}: {error!r}"}, status=400)

    def _later(self, answer, **more):
        number = f"r{len(self.answers)}"
        self.answers[number] = answer
        return web.json_response({"request_id": number, **more})

    def _on_healthz(self, _):
        return web.json_response({"status": "ok"})

    def _on_client_config(self, _):
        return web.json_response({"use_pyqwest_transport": False, "sample_no_retries": True})

    def _on_create_session(self, _):
        return web.json_response({"type": "create_session", "session_id": "s"})

    def _on_create_model(self, body):
        lora = body["lora_config"]
        return self._later({"type": "create_model", "model_id": self._make(lora["rank"], lora["seed"])})

    def _on_get_info(self, body):
        return web.json_response({"model_id": body["model_id"], "model_data": {"model_name": "tiny"}})

    def _make(self, rank, seed):
        number = f"s:train:{len(self.lives)}"
        params = self.adapter.model_copy(update={"r": rank})
        self.lives[number] = model = add_lora(copy.deepcopy(self.base), params, seed=seed).eval()
        trained = [one for one in model.parameters() if one.requires_grad]
        self.optimizers[number] = torch.optim.AdamW(trained, lr=0.0)
        return number

    def _on_load_weights(self, body):
        weights, optimizer = self.saved[body["path"]]
        number = self._make(self.adapter.r, 0)
        # the SDK names a model by how many its session has made; this server has one session
        self.lives[f"s:train:{body['model_seq_id']}"] = self.lives.pop(number)
        self.optimizers[f"s:train:{body['model_seq_id']}"] = self.optimizers.pop(number)
        self.live.load_state_dict(weights)
        self.optimizers[f"s:train:{body['model_seq_id']}"].load_state_dict(optimizer)
        return self._later({"type": "load_weights", "path": body["path"]})

    def _on_save_weights(self, body):
        path = f"tinker://{body['model_id']}/weights/{len(self.saved)}-{body['path']}"
        state = self.lives[body["model_id"]].state_dict(), self.optimizers[body["model_id"]].state_dict()
        self.saved[path] = copy.deepcopy(state)
        return self._later({"type": "save_weights", "path": path})

    def _on_save_weights_external(self, body):
        path = f"tinker://{body['model_id']}/external_weights/{body['path']}"
        return self._later({"type": "save_weights_external", "path": path})

    def _on_save_weights_for_sampler(self, body):
        number = f"sampler{len(self.samplers)}"
        self.samplers[number] = copy.deepcopy(self.lives[body["model_id"]])
        return self._later({"type": "save_weights_for_sampler", "sampling_session_id": number})

    def _on_optim_step(self, body):
        adam, optimizer = body["adam_params"], self.optimizers[body["model_id"]]
        named = {"lr": "learning_rate", "eps": "eps", "weight_decay": "weight_decay"}
        for group in optimizer.param_groups:
            group.update({ours: adam[theirs] for ours, theirs in named.items()}, betas=(adam["beta1"], adam["beta2"]))
            if adam["grad_clip_norm"]:
                torch.nn.utils.clip_grad_norm_(group["params"], adam["grad_clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        return self._later({"metrics": {}})

    def _learn(self, number, data, loss_fn, config, forward_only):
        found, total = [], 0.0
        for ids, values in data:
            with torch.set_grad_enabled(not forward_only):
                logits = self.lives[number](torch.tensor(np.array(ids))[None]).logits[0]
                targets = torch.tensor(np.array(values["target_tokens"]))
                logprobs = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
                loss = loss_of(logprobs, values, loss_fn, config)
            if not forward_only:
                loss.backward()
            found.append(logprobs.detach().numpy())
            total += float(loss.detach())
        if not forward_only:
            self.losses.append(total)
        offsets = np.cumsum([0, *(one.nbytes for one in found)], dtype=np.int64).tobytes()
        tensor = proto.BatchedTensor(data=b"".join(map(bytes, found)), offsets=offsets, dtype=proto.DTYPE_FLOAT32)
        record = proto.ArrayRecord(fields={"logprobs": tensor}, num_datums=len(found))
        return proto.ForwardBackwardOutput(loss_fn_outputs=[record], metrics={"loss:sum": total}).SerializeToString()

    @torch.no_grad()
    def _on_asample(self, body):
        sampling, model = body["sampling_params"], self.samplers[body["sampling_session_id"]]
        ids = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        generator, tokens, logprobs = torch.Generator().manual_seed(sampling["seed"]), [], []
        while len(tokens) < sampling["max_tokens"] and not {*tokens[-1:]} & set(sampling["stop"]):
            logits = model(torch.tensor([ids + tokens])).logits[0, -1]
            distribution = (logits / (sampling["temperature"] or 1)).log_softmax(-1)
            drawn = torch.multinomial(distribution.exp(), 1, generator=generator)
            tokens.append(int(drawn if sampling["temperature"] else logits.argmax()))
            logprobs.append(float(distribution[tokens[-1]]))
        is_stop = tokens[-1] in sampling["stop"]
        if self.mood == "no_stop" and is_stop:
            tokens, logprobs = tokens[:-1], logprobs[:-1]
        sequence = proto.SampledSequence(
            stop_reason=proto.STOP_REASON_STOP if is_stop else proto.STOP_REASON_LENGTH,
            tokens=np.array(tokens, np.int32).tobytes(),
            logprobs=b"" if self.mood == "no_logprobs" else np.array(logprobs, np.float32).tobytes(),
        )
        answer = proto.SampleResponse(sequences=[sequence]).SerializeToString()
        return self._later(answer, sample_sequence_ids=["one"])

    async def _file(self, request):
        model = self.lives[request.match_info["model"]]
        if request.match_info["file"] == "adapter_model.safetensors":
            weights = {name: one.contiguous() for name, one in get_peft_model_state_dict(model).items()}
            return web.Response(body=save(weights))
        config = model.peft_config["default"]
        return web.Response(text=json.dumps({"r": config.r, "lora_alpha": config.lora_alpha}))


def read_datum(datum):
    kinds = {proto.DTYPE_FLOAT32: np.float32, proto.DTYPE_INT64: np.int64}
    values = {name: np.frombuffer(one.dense, kinds[one.dtype]) for name, one in datum.loss_fn_inputs.items()}
    return np.frombuffer(datum.model_input[0].encoded_text.tokens, np.int32), values


def loss_of(logprobs, values, loss_fn, config):
    """As Tinker documents them: sums over tokens."""
    numbers = {name: torch.tensor(np.array(one)) for name, one in values.items()}
    if loss_fn == "cross_entropy":
        return -(logprobs * numbers["weights"]).sum()
    ratio, advantages = (logprobs - numbers["logprobs"]).exp(), numbers["advantages"]
    if loss_fn == "importance_sampling":
        return -(ratio * advantages).sum()
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -torch.minimum(ratio * advantages, clipped * advantages).sum()
