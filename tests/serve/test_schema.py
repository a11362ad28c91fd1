"""The server against its own OpenAPI description, whose examples fit its schemas.

Schemathesis makes valid and invalid requests. No answer may be a 5xx, have a status or content type that is not
described, or a body unlike its schema. About SCHEMA_EXAMPLES requests are made: 100 by default, 300 with --full.
"""

from __future__ import annotations

import base64
import html
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pipeline.serve.docs.openapi import description
from tests.serve.live import PASSWORD, LiveServer, credentials

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "100"))
DOCUMENT = description()
OPERATIONS = [(verb, path) for path, verbs in DOCUMENT["paths"].items() for verb in verbs]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
GRACE = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "e1", "X-RPC-DIRECTORY": "schema"}

schema = schemathesis.openapi.from_dict(description())


def contents(node: Any) -> list[dict[str, Any]]:
    """Every media type object in the document."""
    if isinstance(node, list):
        return [content_of for item in node for content_of in contents(item)]
    if not isinstance(node, dict):
        return []
    own = list(node["content"].values()) if "content" in node else []
    return own + [content_of for item in node.values() for content_of in contents(item)]


def test_every_example_fits_its_schema() -> None:
    checked = 0
    for content in contents(DOCUMENT["paths"]):
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        examples = [item["value"] for item in content.get("examples", {}).values()]
        for example in examples + ([content["example"]] if "example" in content else []):
            Draft202012Validator(schema).validate(example)
            checked += 1
    assert checked > 100


def test_every_route_of_the_server_is_described(live: LiveServer) -> None:
    """All but HEAD, which is GET without a body, and the description's own addresses."""
    app: Any = live.server.config.app
    served = {
        (method.lower(), route.path.replace("{external_id:path}", "{externalId}").replace("person_id", "personId"))
        for route in app.routes
        for method in route.methods
        if method != "HEAD" and route.path not in ("/docs", "/openapi.json")
    }
    assert served == set(OPERATIONS)


@pytest.mark.parametrize(("verb", "path"), OPERATIONS)
def test_every_operation_tells_its_errors(verb: str, path: str) -> None:
    route = DOCUMENT["paths"][path][verb]
    assert route["summary"]
    assert route["operationId"]
    assert route["tags"]
    answers = route["responses"]
    if route["security"]:
        assert {"400", "401", "429", "500", "503"} <= set(answers)
    for status, answer in answers.items():
        assert answer["description"]
        if int(status) >= 400:
            assert answer["content"]["application/json"]["example"]["status"] == int(status)


def test_the_page_needs_nothing_from_elsewhere(live: LiveServer) -> None:
    page = httpx.get(f"{live.url}/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "<script" not in page.text
    assert "://" not in page.text.replace("cvos://", "").replace("https://github.com", "")
    for verb, path in OPERATIONS:
        assert f"{verb.upper()}</span> <code>{path}</code>" in page.text
    assert httpx.get(f"{live.url}/openapi.json").json() == DOCUMENT


def test_the_page_has_each_request_as_a_command(live: LiveServer, hopper: bytes, tmp_path: Path) -> None:
    """Run as they stand, with this server's address and password, the commands get described answers."""
    (tmp_path / "photo.jpg").write_bytes(hopper)
    shown = re.findall(r"<pre>(curl .*?)</pre>", httpx.get(f"{live.url}/docs").text, re.DOTALL)
    assert len(shown) == len(OPERATIONS)
    for text, (verb, path) in zip(shown, OPERATIONS, strict=True):
        command = html.unescape(text).replace("alice:secret", f"alice:{base64.b64encode(PASSWORD.encode()).decode()}")
        command = command.replace("DIRECTORY: main", "DIRECTORY: page")
        line = f"url={live.url}; {command} -sS -o /dev/null -w '%{{http_code}}'"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout in DOCUMENT["paths"][path][verb]["responses"], (verb, path)
        # The examples' ids are nobody's; the external id is that of the person just inserted.
        known = "external" in path or not re.search("{|merge|imagekey", path)
        assert done.stdout in (("200", "201") if known else ("404",)), (verb, path)
    with live.http("page") as http:
        for person in http.get("/people").json()["people"]:
            http.delete(f"/people/{person['personId']}")


# Its answers


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
    max_examples=max(1, EXAMPLES // len(OPERATIONS)),
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
