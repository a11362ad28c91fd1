"""/openapi.json, and /docs: the same description as one page without scripts or anything from other hosts."""

from __future__ import annotations

import html
import json
import shlex
from functools import cached_property
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.serve.docs.openapi import description
from pipeline.serve.responses import encoded_response, json_bytes

Json = dict[str, Any]

_PERSON: Final = ("X-RPC-PERSON-NAME", "X-RPC-EXTERNAL-ID")  # which an insertion needs
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { margin-bottom: 0 } h2 { margin: 2.5rem 0 0; font-size: 1.2rem } table { border-collapse: collapse; width: 100% }
h2 code { background: none; padding: 0 } th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0 }
tr + tr { border-top: 1px solid #ddd } code, pre { font: 14px/1.4 ui-monospace, monospace; background: #f4f4f4 }
code { padding: .1rem .3rem } pre { padding: .8rem; overflow-x: auto } summary { cursor: pointer; margin: .3rem 0 }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 700; color: #0b5394 }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e4 } tr + tr { border-color: #333 }
  code, pre { background: #22262c } .verb { color: #7fb2e5 } }
"""


class Docs:
    """The routes /openapi.json and /docs. Both documents are made at their first request."""

    async def openapi(self, _: Request) -> Response:
        return encoded_response(self._description)

    async def page(self, _: Request) -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return Response(self._page, headers={"Content-Security-Policy": policy}, media_type="text/html")

    @cached_property
    def _description(self) -> bytes:
        return json_bytes(description())

    @cached_property
    def _page(self) -> str:
        return page(description())


def page(document: Json) -> str:
    """An OpenAPI document as HTML."""
    info = document["info"]
    routes = [_route(verb, path, route) for path, verbs in document["paths"].items() for verb, route in verbs.items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1>{_paragraphs(info['description'])}"
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>{"".join(routes)}</html>'
    )


def _route(verb: str, path: str, route: Json) -> str:
    parameters = [_parameter(parameter) for parameter in route.get("parameters", ())]
    table = f"<table><tr><th>parameter<th>in<th>meaning</tr>{''.join(parameters)}</table>" if parameters else ""
    body = "".join(
        f"<p>Body: <code>{_text(kind)}</code></p>{_examples(content)}"
        for kind, content in route.get("requestBody", {}).get("content", {}).items()
    )
    answers = "".join(_answer(status, answer) for status, answer in route["responses"].items())
    return (
        f'<h2><span class="verb">{verb.upper()}</span> <code>{_text(path)}</code> {_text(route["summary"])}</h2>'
        f"{_paragraphs(route.get('description', ''))}<pre>{_text(_curl(verb, path, route))}</pre>"
        f"{table}{body}<p>Answers:</p>{answers}"
    )


def _curl(verb: str, path: str, route: Json) -> str:
    """The request as a command line, with the examples of what it needs. `$url` is the address of the server."""
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


def _parameter(parameter: Json) -> str:
    required = " (required)" if parameter["required"] else ""
    example = f" Example: <code>{_text(parameter['example'])}</code>" if parameter["example"] != "" else ""
    return (
        f"<tr><td><code>{_text(parameter['name'])}</code><td>{parameter['in']}"
        f"<td>{_inline(parameter['description'])}{required}{example}</tr>"
    )


def _answer(status: str, answer: Json) -> str:
    shown = "".join(_examples(content) for content in answer.get("content", {}).values())
    label = f"<code>{status}</code> {_inline(answer['description'])}"
    return f"<details><summary>{label}</summary>{shown}</details>" if shown else f"<p>{label}</p>"


def _examples(content: Json) -> str:
    named = [(name, example["value"]) for name, example in content.get("examples", {}).items()]
    single = [("", content["example"])] if "example" in content else []
    return "".join(f"{_text(name)}<pre>{_text(json.dumps(value, indent=2))}</pre>" for name, value in named + single)


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(part)}</p>" for part in text.strip().split("\n\n") if part)


def _inline(text: str) -> str:
    """HTML of a text in which `backticks` mark code."""
    parts = _text(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _text(value: object) -> str:
    return html.escape(str(value))
