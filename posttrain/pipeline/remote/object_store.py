"""Objects in S3, by boto3: a refusal is an error of one sentence, and an S3 that does not answer is
asked again for a while.

Keys come from boto3's own places (the environment first) and are never seen here. Messages carry
S3's error code and not its text: what a server writes about a refused key is not ours to print.
"""

import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import boto3
from boto3.exceptions import RetriesExceededError, S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError, SSLError

from posttrain.dispatch.settings import S3Remote
from posttrain.runtime.exits import ConfigurationError, Interrupted

CONNECT_S, READ_S = 5, 60
MAX_PAUSE_S = 5.0
_TRANSFER = TransferConfig(multipart_chunksize=64 * 2**20, max_concurrency=4)  # parts are 10,000 at most: 640 GB a file
_NO_ROOM_NOW = {"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests"}
_NO_ROOM_NOW |= {"OperationAborted"}
_WRONG_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301")
T = TypeVar("T")


class Unreachable(Interrupted):
    """No answer, or none that means anything, right now."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`name` is relative to the remote's prefix."""

    name: str
    size: int
    changed_at: datetime


class ObjectStore:
    """The objects under the remote's prefix, named relative to it.

    Every method but `check` waits out an S3 that does not answer and raises Interrupted where it
    does not for too long, ConfigurationError where it refuses. `log` gets a line when the waiting
    begins.
    """

    def __init__(
        self, remote: S3Remote, *, log: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    ) -> None:
        self.remote, self._log = remote, log
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"mode": "standard", "total_max_attempts": 3},
            # S3s of others do not all know the checksums that newer clients add; what must be whole
            # here carries its own.
            request_checksum_calculation="when_required" if remote.endpoint_url else "when_supported",
            response_checksum_validation="when_required" if remote.endpoint_url else "when_supported",
        )
        session = boto3.session.Session()  # its own: boto3's common one keeps the keys of who came first
        # Only signatures need a region where an endpoint is named; boto3 refuses to work without.
        region = remote.region or session.region_name or "us-east-1"
        self._client: Any = session.client("s3", endpoint_url=remote.endpoint_url, region_name=region, config=config)

    def check(self) -> None:
        """Check once that the bucket is there and may be used. Raises Unreachable too."""
        self._once(self._client.list_objects_v2, Bucket=self.remote.bucket, Prefix=self.remote.prefix, MaxKeys=1)

    def put(self, path: Path, name: str) -> None:
        """Raises FileNotFoundError where the file is gone."""
        self._ask(self._client.upload_file, str(path), self.remote.bucket, self._key(name), Config=_TRANSFER)

    def get(self, name: str, path: Path) -> None:
        """Write the file whole or not at all. Raises FileNotFoundError where there is no such
        object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._ask(self._client.download_file, self.remote.bucket, self._key(name), str(path), Config=_TRANSFER)

    def claim(self, name: str) -> bool:
        """True if this call has made the object; of several from anywhere one gets True. An S3
        without conditional writes gives every one True."""
        return self._ask(self._claim, name, uuid.uuid4().hex.encode())

    def list(self, prefix: str) -> list[StoredObject]:
        """Objects whose name begins so."""
        return self._ask(lambda: list(self._list(prefix)))

    def delete(self, prefix: str) -> None:
        """Delete all whose name begins so."""
        for found in self.list(prefix):
            self._ask(self._client.delete_object, Bucket=self.remote.bucket, Key=self._key(found.name))

    def patiently(self, action: Callable[[], T]) -> T:
        """Call `action` again while it raises Unreachable. Raises Interrupted when that has taken
        too long."""
        deadline, pause_s = time.monotonic() + self.remote.patience_s, 0.5
        while True:
            try:
                return action()
            except Unreachable as error:
                if time.monotonic() + pause_s > deadline:
                    raise Interrupted(
                        f"{error}, for {self.remote.patience_s:g} s now: without it neither inputs nor results "
                        "get from machine to machine. Look whether it is up and endpoint_url in infra/dispatch.yaml "
                        "leads to it, then run again: what was shipped is kept"
                    ) from error
                if pause_s == 0.5:
                    self._log(f"{error}; asking again for {self.remote.patience_s:g} s")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _claim(self, name: str, own: bytes) -> bool:
        place = {"Bucket": self.remote.bucket, "Key": self._key(name)}
        try:
            self._client.put_object(**place, Body=own, IfNoneMatch="*")
        except ClientError as error:
            code, status = _code_of(error)
            if status == 412:  # also where our own first try got through and its answer did not
                return bool(self._client.get_object(**place)["Body"].read() == own)
            if code != "NotImplemented":
                raise
        return True

    def _list(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.remote.bucket, Prefix=self._key(prefix)
        ):
            for found in page.get("Contents", ()):
                yield StoredObject(found["Key"].removeprefix(self.remote.prefix), found["Size"], found["LastModified"])

    def _ask(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return self.patiently(lambda: self._once(call, *arguments, **named))

    def _once(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """One call of boto3, its errors as ours."""
        try:
            return call(*arguments, **named)
        except S3UploadFailedError as error:
            self._refuse(error.__context__ if isinstance(error.__context__, ClientError) else None, error)
        except ClientError as error:
            self._refuse(error, error)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                f"there are no keys for {self.remote.url}, so S3 would refuse everything. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment; jobs on Kubernetes get them from the target's `secret`"
            ) from error
        except SSLError as error:
            raise ConfigurationError(
                f"{self._where} has a certificate that is not trusted here; name the right one in AWS_CA_BUNDLE"
            ) from error
        except (BotoCoreError, RetriesExceededError) as error:
            raise Unreachable(f"{self._where} does not answer ({type(error).__name__})") from error

    def _refuse(self, error: ClientError | None, cause: BaseException) -> NoReturn:
        code, status = _code_of(error) if error else ("unknown error", 500)
        remote = self.remote
        if code == "NoSuchBucket" or (
            status == 404 and error is not None and error.operation_name in ("HeadBucket", "ListObjectsV2")
        ):
            raise ConfigurationError(
                f"{self._where} has no bucket {remote.bucket!r}, so nothing can be kept there. Make it, or correct "
                f"`url` ({remote.url}) in infra/dispatch.yaml"
            ) from cause
        if status == 404:
            raise FileNotFoundError(f"{remote.url} has no such object") from cause
        if code in _WRONG_REGION:
            raise ConfigurationError(
                f"the bucket {remote.bucket!r} is in another region than {remote.region!r}: correct `region`"
            ) from cause
        if status >= 500 or status == 429 or code in _NO_ROOM_NOW:
            raise Unreachable(f"{self._where} answers with {code}") from cause
        raise ConfigurationError(
            f"{self._where} refuses the keys of this environment for {remote.url} ({code}), so nothing can be kept "
            "there. Are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, where they are temporary) "
            "right, and may they read, write, list and delete there?"
        ) from cause

    @property
    def _where(self) -> str:
        return f"S3 at {self.remote.endpoint_url}" if self.remote.endpoint_url else "S3"

    def _key(self, name: str) -> str:
        return f"{self.remote.prefix}{name}"


def _code_of(error: ClientError) -> tuple[str, int]:
    """Code and status of S3's answer, and nothing else of its text."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
    return code if re.fullmatch(r"[A-Za-z0-9.]{1,60}", code) else str(status), status
