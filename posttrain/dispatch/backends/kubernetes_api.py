"""Client of the Kubernetes API server in plain JSON, through the official package: its models would
drop fields that the cluster knows and they do not.

Every request has a time limit and is sent once: the caller knows how long to go on.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, load_config

from posttrain.runtime.exits import ConfigurationError, Interrupted

CONNECT_S, READ_S = 3.0, 10.0
_TRY_LATER = (0, 408, 409, 429)  # 0: TLS, of a connection that was cut; 409: changed by somebody else meanwhile


class Absent(Exception):
    """404: there is no such thing."""


class Taken(Exception):
    """There is one of that name."""


class Api:
    """Requests to one API server. `now` is the server's clock at its last answer, which all times
    in its answers are by."""

    def __init__(self, client: ApiClient | None) -> None:
        if client is None:
            configuration = Configuration()
            try:
                load_config(client_configuration=configuration)
            except (ConfigException, OSError) as error:
                raise ConfigurationError(
                    f"no Kubernetes cluster is configured ({error}): name one in KUBECONFIG, or run inside of one"
                ) from error
            client = ApiClient(configuration)
        client.configuration.retries = False
        client.rest_client.pool_manager.connection_pool_kw["retries"] = False
        self._client = client
        self.now = datetime.now(UTC)

    def get(self, path: Sequence[str], **query: str) -> dict[str, Any]:
        """Raises Absent."""
        content: dict[str, Any] = json.loads(self._request("GET", path, query=query))
        return content

    def text(self, path: Sequence[str], **query: str) -> bytes:
        """Raises Absent."""
        return self._request("GET", path, query=query)

    def create(self, path: Sequence[str], body: Mapping[str, Any]) -> None:
        """Raises Taken."""
        self._request("POST", path, body=body)

    def patch(self, path: Sequence[str], body: Mapping[str, Any]) -> None:
        """A merge patch. Raises Absent."""
        self._request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def delete(self, path: Sequence[str], *, grace_s: int) -> None:
        """Raises Absent."""
        self._request("DELETE", path, body={"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s})

    def _request(
        self,
        method: str,
        path: Sequence[str],
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        names = {f"part{number}": part for number, part in enumerate(path)}
        request = self._client.param_serialize(
            method,
            "/" + "/".join(f"{{{name}}}" for name in names),
            path_params=names,  # quoted by the client
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json, */*"}
            | ({"Content-Type": content_type} if body is not None else {}),
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=(CONNECT_S, READ_S))
            content: bytes = response.read()
        except urllib3.exceptions.HTTPError as error:
            raise Interrupted(f"the Kubernetes API server does not answer: {error}") from error
        except ApiException as error:
            raise Interrupted(f"the Kubernetes API server does not answer: {error.reason}") from error
        if date := response.headers.get("Date"):
            self.now = parsedate_to_datetime(date)
        if response.status >= 400:
            raise _error(response.status, content, f"{method} {'/'.join(path)}")
        return content


def _error(status: int, content: bytes, what: str) -> Exception:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {}
    message = answer.get("message") or content.decode(errors="replace")[:300]
    if status == 404:
        return Absent(message)
    if status == 409 and answer.get("reason") == "AlreadyExists":
        return Taken(message)
    if status >= 500 or status in _TRY_LATER:
        return Interrupted(f"the Kubernetes API server cannot answer now ({status}): {message}")
    return ConfigurationError(f"Kubernetes refuses {what} ({status}): {message}")
