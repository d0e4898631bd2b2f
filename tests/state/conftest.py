"""Four ranks that live through a file's tests."""

import pytest

from helpers.runtime.cluster import Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(4) as cluster:
        yield cluster
