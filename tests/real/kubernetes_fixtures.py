"""Fixtures of Kubernetes' suite: a namespace of the module's own on the cluster that
KUBECONFIG names."""

from collections.abc import Iterator

import pytest

from tests.real import cluster


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    with cluster.namespace() as name:
        yield name
