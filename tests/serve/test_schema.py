"""The server against its own OpenAPI description, whose examples fit its schemas.

Schemathesis makes valid and invalid requests, with the parameters of the description and the others that clients know.
No answer may be a 5xx, have a status or content type that is not described, or a body unlike its schema. At least
SCHEMA_EXAMPLES random requests are made: 600 by default, 5,000 with --full, which also makes 2,200 with the values at
the bounds of each parameter.
"""

from __future__ import annotations

import base64
import html
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
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

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve.handlers import description
from tests.serve.conformance.photos import faceless, pair, photo
from tests.serve.known_parameters import FILTERS, POST_PEOPLE, ClientParameter
from tests.serve.live import PASSWORD, LiveServer, credentials, live_server

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "600"))
DOCUMENT = description()
OPERATIONS = [(verb, path) for path, verbs in DOCUMENT["paths"].items() for verb in verbs]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PAGE = "https://album.example.org"
GRACE = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "e1", "X-RPC-DIRECTORY": "schema"}


def with_more_parameters(document: dict[str, Any]) -> dict[str, Any]:
    """The description with what it leaves out: the names that clients know and that are harmless or refused, what
    browsers and proxies send, and the question that a browser asks first."""
    for path, verbs in document["paths"].items():
        for verb, route in verbs.items():
            known = POST_PEOPLE if verb == "post" else FILTERS if "count" in names(route) else ()
            rows = [row for row in known if row.verdict != "done"]
            route["parameters"] = [*route.get("parameters", ()), *map(parameter, rows), *BROWSERS]
        if path in ("/people", "/people/{personId}"):
            answers = {"200": {"description": "It may."}, "400": {"description": "It may not."}, "405": OTHER}
            ids = [each for each in route["parameters"] if each["in"] == "path"]
            verbs["options"] = {"parameters": [*ids, *QUESTION, *BROWSERS], "responses": answers}
    return document


def names(route: dict[str, Any]) -> set[str]:
    return {parameter["name"] for parameter in route.get("parameters", ())}


def parameter(row: ClientParameter) -> dict[str, Any]:
    """Of one that is refused, the values that ask for nothing."""
    schema = TEXT if row.verdict == "harmless" else {"enum": ["", *row.neutral]}
    name = row.name.replace("*", "LEVEL")
    return header(name, **schema) if row.is_header else {"name": name, "in": "query", "schema": schema}


def header(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": schema}


OTHER = {"description": "It is not a browser's question."}
TEXT: dict[str, Any] = {"type": "string"}
QUESTION = [
    header("Access-Control-Request-Method", anyOf=[{"enum": ["PUT", "DELETE"]}, TEXT]),
    header("Access-Control-Request-Headers", anyOf=[{"enum": ["x-rpc-directory"]}, TEXT]),
]
BROWSERS = [header("Origin", anyOf=[{"enum": [PAGE, "null"]}, TEXT]), header("X-Forwarded-For", **TEXT)]


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
    """All but HEAD, which is GET without a body, the description's own addresses, and the page for people."""
    app: Any = live.server.config.app
    served = {
        (method.lower(), route.path.replace("{external_id:path}", "{externalId}").replace("person_id", "personId"))
        for route in app.routes
        for method in route.methods
        if method != "HEAD" and route.path not in ("/", "/docs", "/openapi.json") and not route.path.startswith("/ui")
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

schema = schemathesis.openapi.from_dict(with_more_parameters(description()))
schema.config.phases.coverage.enabled = EXAMPLES >= 5000  # the values at the bounds
PERSON_PARAMETERS = ("update-person-id", "merge-with", "X-RPC-ROOT-PERSON-ID")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """A server of its own: what is made up fills directories. Web pages may call it, and this machine is a proxy."""
    settings = {"serve__cors_origins": PAGE, "serve__trusted_proxies": "127.0.0.1"}
    with live_server(tmp_path_factory.mktemp("schema") / "store", extractor, **settings) as server:
        yield server


class Population:
    """What is in the directory, so that not every request is for nobody."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.pictures = cycle([photo("hopper"), pair("hopper", "collins"), photo("collins"), faceless()])
        self.person = self.guid = ""
        self.calls = 0
        self.answers: Counter[str] = Counter()

    def use(self, case: Case) -> None:
        """Makes every other request one that can succeed, as far as ids and pictures go."""
        self.calls += 1
        if self.calls % 2:
            return
        if case.method == "POST":
            case.body = next(self.pictures)
        self._settle()
        for name, value in (("personId", self.person), ("externalId", "e1"), ("guid", self.guid)):
            if name in case.path_parameters:
                case.path_parameters[name] = value
        if isinstance(case.body, dict) and case.body.get("personIds"):
            case.body["personIds"] = [self.person]
        for given in (case.query, case.headers):
            for name, value in list(given.items()):
                given[name] = self._usable(name, value)

    def _usable(self, name: str, value: Any) -> Any:
        if name in PERSON_PARAMETERS:
            return self.person
        return str(value).lstrip("-") if name.upper().removeprefix("X-RPC-").startswith("MIN-") else value

    def _settle(self) -> None:
        """Inserts the person again where a request has deleted her."""
        with self.live.http("schema") as http:
            if self.person and http.get(f"/people/{self.person}").status_code == 200:
                return
            face = http.post("/people", content=photo("hopper"), headers=GRACE).json()["identifiedFaces"][0]
            self.person = face["personId"]
            record = http.get(f"/people/{self.person}").json()["people"][0]
            self.guid = record["imageURI"].rpartition("/")[2]


@pytest.fixture(scope="module")
def population(asked: LiveServer) -> Population:
    return Population(asked)


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=max(1, EXAMPLES // len(OPERATIONS)),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_answers_are_as_described(case: Case, population: Population, asked: LiveServer) -> None:
    population.use(case)
    headers = {name.decode(): value.decode("latin-1") for name, value in credentials("schema")}
    if population.calls % 6:  # else whatever was made up
        case.headers.update(headers)
    else:
        case.headers["X-RPC-AUTHORIZATION"] = headers["X-RPC-AUTHORIZATION"]
    answer = case.call(asked.url)
    population.answers[f"{case.operation.label} {answer.status_code}"] += 1
    case.validate_response(answer, checks=CHECKS)


@pytest.mark.slow
def test_much_was_asked(population: Population, record_property: Callable[[str, object], None]) -> None:
    """Runs last. What hypothesis draws, and so how many posts succeed, depends on the modules that are loaded."""
    for answer, count in population.answers.items():
        record_property(answer, count)
    assert population.calls == sum(population.answers.values()) >= EXAMPLES
    assert population.answers["POST /people 201"] > 2
