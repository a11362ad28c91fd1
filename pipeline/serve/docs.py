"""/openapi.json, and /docs: the same as one page without scripts or external resources.

The description is `openapi.yaml`; `docs.html` is the page's template. Both answers are made at the first request.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml
from starlette.requests import Request
from starlette.responses import Response

from pipeline.serve.responses import encoded_response, json_bytes

Json = dict[str, Any]

_FILES: Final = Path(__file__).parent
_PERSON: Final = ("X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID")  # needed by an insertion


async def openapi(_: Request) -> Response:
    return encoded_response(_encoded())


@cache
def _encoded() -> bytes:
    return json_bytes(description())


async def docs(_: Request) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return Response(page(), headers={"Content-Security-Policy": policy}, media_type="text/html")


def description() -> Json:
    """The whole document (OpenAPI 3.1)."""
    document: Json = yaml.safe_load((_FILES / "openapi.yaml").read_bytes())
    del document["x-parts"]
    document["info"]["version"] = version("facepipe")
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return document


@cache
def page() -> str:
    """The same as HTML."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(_FILES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("docs.html").render(document=description(), curl=_curl, dumps=json.dumps)


def _curl(verb: str, path: str, route: Json) -> str:
    """The request as a curl command with examples. `$url` is the server's address."""
    headers = {"X-RPC-AUTHORIZATION": "alice:secret"} if route["security"] else {}
    for parameter in route.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        elif parameter["required"] or (verb == "post" and parameter["name"] in _PERSON):
            headers[parameter["name"]] = parameter["example"]
    data = ""
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        headers["Content-Type"] = kind
        body = json.dumps(content["example"]) if "example" in content else "@photo.jpg"
        data = f" --data-binary {shlex.quote(body)}"
    sent = "".join(f" \\\n    -H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items())
    return f'curl -X {verb.upper()} "$url{path}"{sent}{data}'
