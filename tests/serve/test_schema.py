"""The server against its own OpenAPI description: schemathesis makes valid and invalid requests and checks the answers.

No answer may be a 5xx, have a status or content type that is not described, or a body unlike its schema. About
SCHEMA_EXAMPLES requests are made: 100 by default, 300 with --full.
"""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pipeline.serve.docs.openapi import description
from tests.serve.live import LiveServer, credentials

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "100"))
OPERATIONS = sum(len(verbs) for verbs in description()["paths"].values())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
GRACE = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "e1", "X-RPC-DIRECTORY": "schema"}


schema = schemathesis.openapi.from_dict(description())


class Population:
    """What is in the directory, so that not every request is for nobody."""

    def __init__(self, live: LiveServer, picture: bytes) -> None:
        self.live, self.picture = live, picture
        self.person = self.guid = ""
        self.calls = 0

    def use(self, case: Case) -> None:
        """Puts real ids and a real picture into every other request."""
        self.calls += 1
        if self.calls % 2:
            return
        if case.method == "POST" and self.calls % 8 == 0:
            case.body = self.picture
        self._settle()
        for name, value in (("personId", self.person), ("externalId", "e1"), ("guid", self.guid)):
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        if isinstance(case.body, dict) and case.body.get("personIds"):
            case.body["personIds"] = [self.person]

    def _settle(self) -> None:
        """Inserts the person again where a request has deleted her."""
        with self.live.http("schema") as http:
            if self.person and http.get(f"/people/{self.person}").status_code == 200:
                return
            face = http.post("/people", content=self.picture, headers=GRACE).json()["identifiedFaces"][0]
            self.person = face["personId"]
            record = http.get(f"/people/{self.person}").json()["people"][0]
            self.guid = record["imageURI"].rpartition("/")[2]


@pytest.fixture(scope="module")
def population(live: LiveServer, hopper: bytes) -> Population:
    return Population(live, hopper)


@schema.parametrize()
@settings(
    max_examples=max(1, EXAMPLES // OPERATIONS),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_answers_are_as_described(case: Case, population: Population, live: LiveServer) -> None:
    population.use(case)
    headers = {name.decode(): value.decode("latin-1") for name, value in credentials("schema")}
    if population.calls % 4:  # else whatever was made up
        case.headers.update(headers)
    else:
        case.headers["X-RPC-AUTHORIZATION"] = headers["X-RPC-AUTHORIZATION"]
    case.call_and_validate(live.url, checks=CHECKS)


def test_much_was_asked(population: Population) -> None:
    """Runs last. Routes without parameters have few cases."""
    assert population.calls >= EXAMPLES // 2
