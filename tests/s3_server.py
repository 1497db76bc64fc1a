"""A real S3 server on loopback: moto's, as a process of its own, which keeps its objects in
memory."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3

KEY_ID, SECRET = "PLANTEDKEYID", "planted+/key='$(x);\"q"  # as they come, and worse
KEYS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
BUCKET = "bucket"


class S3Server:
    """`url` is its endpoint. It has one bucket, and takes any key."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="other", aws_secret_access_key="other"
        )
        self.client.create_bucket(Bucket=BUCKET)

    def names(self, prefix: str = "") -> list[str]:
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())]

    def read(self, name: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()


@contextlib.contextmanager
def serve(log: Path, environment: Mapping[str, str] = {}) -> Iterator[S3Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (
        log.open("wb") as told,
        subprocess.Popen(command, env={**os.environ, **environment}, stdout=told, stderr=told) as process,
    ):
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/").close()
                    break
                except OSError:
                    assert time.monotonic() < end, log.read_text()
                    assert process.poll() is None, log.read_text()
                    time.sleep(0.1)
            yield S3Server(f"http://127.0.0.1:{port}")
        finally:
            process.kill()


def planted(*folders: Path) -> list[Path]:
    """Files in which one of the keys is."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if any(word.encode() in path.read_bytes() for word in (KEY_ID, SECRET))]
