"""The description fits the server, and its examples fit its schemas."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator

from pipeline.serve.docs.openapi import description
from tests.serve.live import LiveServer

DOCUMENT = description()
OPERATIONS = [(verb, path) for path, verbs in DOCUMENT["paths"].items() for verb in verbs]


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
