"""vLLM servers of a job's own: started on its GPUs before a stage that plays, started again where
one dies, and ended with the stage.

`POSTTRAIN_VLLM_SERVERS` says how many (`servers` in infra/dispatch.yaml). They take the last of the
GPUs that the job sees, and the stage keeps the others; with `POSTTRAIN_VLLM_COLOCATED` it keeps
all, and the servers sleep (vLLM's sleep mode) until it plays. A server begins with the stage's
model, for its shapes, and gets the weights from the engine like any other
(`rollout/engines/vllm_engine.py`).
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from posttrain.config.params import Params
from posttrain.dispatch.settings import PLAYING
from posttrain.models.params import LoraAdapter
from posttrain.provenance.environment import TREE_ROOT
from posttrain.provenance.nodes import NODES, free_port
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.redaction import redact
from posttrain.runtime.state import STATE_DIR
from posttrain.train.online.params import OnlineParams

SERVERS, COLOCATED = "POSTTRAIN_VLLM_SERVERS", "POSTTRAIN_VLLM_COLOCATED"
SERVE = Path("infra/vllm/serve.sh")
START_S = 1800.0  # a large model is read from a slow disk, and compiled
MAX_STARTS = 4  # of one server
_WATCH_S, _END_S = 1.0, 15.0
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of adapters that vLLM knows
_SERVED = (
    "import sys; from pathlib import Path; from posttrain.models.loading import load_on_cpu; "
    "from posttrain.rollout.engines.weight_files import write_served_folder as write; "
    "folder, target = map(Path, sys.argv[1:3]); write(folder, load_on_cpu(folder, dtype=sys.argv[3]), target)"
)
# TERM, which serve.sh passes on: it outlives no runner that was killed
_DIES_WITH_US = (
    "import os, signal, sys; from posttrain.runtime.worker import die_with_parent; die_with_parent(signal.SIGTERM); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@contextmanager
def own_servers(stage: str, item: str, params: Params) -> Iterator[None]:
    """Context of a stage in whose environment servers are named that answer; nothing is started
    for one that plays no episodes, or without `POSTTRAIN_VLLM_SERVERS`. Raises ConfigurationError
    where the job has no GPU left to train on or no vLLM, Interrupted where a server does not come
    up."""
    if stage not in PLAYING or (count := _asked(os.environ)) == 0:
        yield
        return
    is_colocated = os.environ.get(COLOCATED) == "1"
    if is_colocated and stage == "train_policy":
        _refuse_play_beside_training(params)
    root = Path(os.environ.get(TREE_ROOT, "."))
    logs = root / STATE_DIR / "servers" / stage
    logs.mkdir(parents=True, exist_ok=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or _all_gpus()
    kept, given = split_gpus(visible, count, is_colocated=is_colocated)
    folder = STATE_DIR / "served"
    _write_model(_model_of(item), folder, params.model.dtype)
    how = {"DTYPE": params.model.dtype, "MAX_MODEL_LEN": str(params.agent.max_context_tokens)}
    if stage == "train_policy" and isinstance(params.model.adapter, LoraAdapter):
        own_rank = params.model.adapter.r
        how["LORA_RANK"] = str(next((rank for rank in _RANKS if rank >= own_rank), own_rank))
    command = [str((root / SERVE).absolute()), str(folder.absolute())]
    servers = [
        _Server(command, {**how, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}, logs / f"{number}.log")
        for number, gpu in enumerate(given, 1)
    ]
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(servers, over), name="servers", daemon=True)
    before = dict(os.environ)
    try:
        for one in servers:
            one.start()
        seconds = _wait_for_all(servers)
        for one in servers if is_colocated else ():
            one.sleep()
        print(f"[{stage}] {count} vLLM servers answer after {seconds:.0f} s, logs: {logs}", file=sys.stderr, flush=True)
        watch.start()
        os.environ.update(POSTTRAIN_ENGINE="vllm", POSTTRAIN_VLLM_URLS=",".join(one.url for one in servers))
        if kept is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = kept
        yield
    finally:
        over.set()
        if watch.is_alive():
            watch.join()
        for one in servers:
            one.end()
        os.environ.clear()
        os.environ.update(before)


def split_gpus(visible: str | None, count: int, *, is_colocated: bool = False) -> tuple[str | None, list[str]]:
    """The GPUs that the stage keeps, and that of each server: of 0,1,2,3 for two servers 0,1 and
    [2, 3]; colocated, all and [2, 3]. Where none is named (a machine without GPUs, or one server a
    machine) no choice is made. Raises ConfigurationError where the stage would keep none."""
    if visible is None or not visible.strip():
        return None, [""] * count
    gpus = [one.strip() for one in visible.split(",")]
    if is_colocated and len(gpus) >= count:
        return visible, gpus[-count:]
    if len(gpus) <= count:
        raise ConfigurationError(
            f"{SERVERS} is {count}, and the job sees {len(gpus)} GPUs ({visible}): a server takes a whole one, and the "
            "stage needs one besides; reserve more gpus or fewer servers"
        )
    return ",".join(gpus[:-count]), gpus[-count:]


def _all_gpus() -> str | None:
    """All of this machine's, as a pod sees them without a variable; None without the driver."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return ",".join(found.stdout.split()) if found.returncode == 0 else None


def _asked(environment: Mapping[str, str]) -> int:
    named = environment.get(SERVERS, "") or "0"
    if not named.isdecimal():
        raise ConfigurationError(f"{SERVERS} is {named!r}, not a number of servers")
    if int(named) and environment.get("POSTTRAIN_VLLM_URLS"):
        raise ConfigurationError(f"{SERVERS} is {named} and POSTTRAIN_VLLM_URLS names servers, too: take one of them")
    if int(named) and environment.get(NODES, "1") != "1":
        raise ConfigurationError(
            f"{SERVERS} is {named} on {environment[NODES]} nodes: a job starts servers on one node alone; start them "
            "as a job of their own and name them in POSTTRAIN_VLLM_URLS"
        )
    return int(named)


def _refuse_play_beside_training(params: Params) -> None:
    late = [one for one in params.train_policy.phases.values() if isinstance(one, OnlineParams) and one.max_staleness]
    if late:
        raise ConfigurationError(
            f"train_policy.algorithm.max_staleness is {late[0].max_staleness}, so episodes are played while the policy "
            "trains, and colocated servers sleep then: set it to 0, or give the servers GPUs of their own"
        )


def _model_of(item: str) -> Path:
    """A model of the shapes that the stage plays with, which is among its inputs."""
    folders = [Path("data/models") / name for name in (item, "sft", "base") if name]
    found = next((one for one in folders if (one / "config.json").is_file()), None)
    if found is None:
        raise ConfigurationError(f"{SERVERS} is set, and there is no model to serve in {', '.join(map(str, folders))}")
    return found


def _write_model(folder: Path, target: Path, dtype: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _SERVED, str(folder), str(target), dtype], check=False)
    if ended.returncode:
        raise ConfigurationError(f"{folder} could not be written for vLLM: its error stands above")


class _Server:
    """One server, on a port of its own that it keeps. `log`: file of its outputs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._environment, self._log = environment, log
        self._port = free_port()
        self._command = [sys.executable, "-c", _DIES_WITH_US, *command, str(self._port)]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.num_starts = 0
        log.unlink(missing_ok=True)

    def start(self) -> None:
        if not Path(self._command[3]).is_file():
            raise ConfigurationError(f"{SERVERS} is set, and {self._command[3]} is not there to start a server")
        self.num_starts += 1
        with self._log.open("ab") as log:
            own = {**os.environ, **self._environment}
            self._process = subprocess.Popen(self._command, env=own, stdout=log, stderr=log, start_new_session=True)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def answers(self) -> bool:
        with suppress(OSError):
            return bool(build_opener(ProxyHandler({})).open(f"{self.url}/health", timeout=2).status == 200)
        return False

    def sleep(self) -> None:
        with build_opener(ProxyHandler({})).open(f"{self.url}/sleep?level=1", data=b"", timeout=START_S):
            pass

    def last_lines(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return redact("\n".join(text.splitlines()[-10:]))

    def end(self) -> None:
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)


def _wait_for_all(servers: Sequence[_Server]) -> float:
    started_s = time.monotonic()
    waiting = list(servers)
    while waiting:
        for one in waiting:
            if (code := one.exit_code) is not None:
                raise ConfigurationError(
                    f"vLLM server {one.url} ended with exit code {code} before it answered; {SERVE} says (is vLLM "
                    f"there? infra/vllm/setup.sh installs it):\n{one.last_lines()}"
                )
        if time.monotonic() - started_s > START_S:
            raise Interrupted(
                f"vLLM server {waiting[0].url} has not answered in {START_S:g} s; its log ends:\n"
                f"{waiting[0].last_lines()}\nRun again"
            )
        waiting = [one for one in waiting if not one.answers()]
        if waiting:
            time.sleep(_WATCH_S)
    return time.monotonic() - started_s


def _watch(servers: Sequence[_Server], over: threading.Event) -> None:
    """Start what has died again, on its port: the engine finds it there."""
    while not over.wait(_WATCH_S):
        for one in servers:
            if one.exit_code is not None and one.num_starts < MAX_STARTS:
                print(
                    f"posttrain: vLLM server {one.url} ended with exit code {one.exit_code} and is started again",
                    file=sys.stderr,
                    flush=True,
                )
                one.start()
