"""Flips bytes of objects in DVC's cache and counts how many damaged ones are read."""

import json
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.falsify.trials import show
from benchmarks.toy_tree import dvc, make_tree
from posttrain.provenance.cache_integrity import remove_damaged_listings
from posttrain.provenance.lockfile import lock_entries


def try_flips(num: int, seed: int) -> list[dict[str, Any]]:
    """A byte of an object in DVC's cache is flipped, what was checked out of it deleted, its reader
    edited: is what was damaged read?"""
    draw, results = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="posttrain-falsify-") as folder:
        made = make_tree(Path(folder) / "made")
        assert dvc(made, "repro").returncode == 0
        refined = (made / "data/refined").read_text()
        for number in range(num):
            root = Path(folder) / str(number)
            subprocess.run(["cp", "-a", str(made), str(root)], check=True)
            before = {name: entry["outs"] for name, entry in lock_entries(root).items()}
            reader, out = draw.choice([("refine", before["make"][0]), ("judge", before["refine"][0])])
            objects = [root / ".dvc/cache/files/md5" / out["md5"][:2] / out["md5"][2:]]
            if out["md5"].endswith(".dir"):
                objects += [
                    root / ".dvc/cache/files/md5" / one["md5"][:2] / one["md5"][2:]
                    for one in json.loads(objects[0].read_text())
                ]
            damaged = draw.choice(objects)
            content = bytearray(damaged.read_bytes())
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            damaged.chmod(0o644)
            damaged.write_bytes(content)
            for path in ("data/made", "data/refined"):
                subprocess.run(["rm", "-rf", str(root / path)], check=True)
            with (root / f"stages/{reader}.py").open("a") as file:
                file.write("# edited\n")
            codes = [dvc(root, "repro").returncode for _ in range(3)]
            if codes[-1] and remove_damaged_listings(root):  # as `posttrain verify` does
                codes.append(dvc(root, "repro").returncode)
            after = {name: entry["outs"] for name, entry in lock_entries(root).items()}
            is_used = after != before or (root / "data/refined").read_text() != refined
            results.append({"reader": reader, "object": damaged.name[-8:], "codes": codes, "used": is_used})
            show(number, results[-1])
            shutil.rmtree(root)
    return results
