"""Takes a model that another trainer trained as the policy of a run: `posttrain adopt-model`."""

import shutil
import subprocess
import sys
from pathlib import Path

from posttrain.models.loading import atomic_folder, load_codec, load_on_cpu
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.policy_inputs import EARLIER_POLICY

_READ = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")  # files that a model and its tokenizer consist of


def adopt(folder: Path, root: Path) -> None:
    """Copy the model of `folder` to `data/earlier_run/policy` of the tree at `root` and have DVC
    track it. What stood there is replaced: DVC's cache has it, where it was tracked.

    Raises ConfigurationError for a folder that is unsafe, lacks weights or tokenizer, or whose chat
    template has no tools.
    """
    load_on_cpu(folder)
    load_codec(folder)
    with atomic_folder(root / EARLIER_POLICY) as copy:
        copy.mkdir(parents=True)
        for file in sorted(path for pattern in _READ for path in folder.glob(pattern)):
            shutil.copyfile(file, copy / file.name)
    command = [sys.executable, "-m", "dvc", "add", "--quiet", str(EARLIER_POLICY)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"DVC does not track {EARLIER_POLICY}: {done.stderr.strip()}")
