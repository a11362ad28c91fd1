"""What a browser does with the page's API, without its pictures on a screen."""

from __future__ import annotations

from typing import Any

import httpx

PASSWORD = "s3cret:päss"
PAGE = {"X-Facepipe-Page": "1"}


class Browser:
    """One browser. Methods assert the status and return the JSON."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def sign_in(self, user: str = "ann", password: str = PASSWORD, status: int = 200) -> dict[str, Any]:
        return self.post("session", {"user": user, "password": password}, status=status)

    def get(self, path: str, status: int = 200, **query: object) -> dict[str, Any]:
        return self._json(self.http.get(f"/ui/api/{path}", params=_texts(query)), status)

    def post(self, path: str, body: object = None, status: int = 200, **query: object) -> dict[str, Any]:
        return self._json(self.http.post(f"/ui/api/{path}", json=body, headers=PAGE, params=_texts(query)), status)

    def people(self, **query: object) -> list[dict[str, Any]]:
        return list(self.get("people", **query)["people"])

    def pages(self, path: str, key: str, **query: object) -> list[list[dict[str, Any]]]:
        """All pages of a question."""
        found, after = [], {}
        while True:
            answer = self.get(path, **query, **after)
            found.append(answer[key])
            if "next" not in answer:
                return found
            after = {"after": answer["next"]}

    def _json(self, answer: httpx.Response, status: int) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert isinstance(body, dict)
        if status >= 400:
            assert body["status"] == status
            assert {"error", "errorReason", "message", "path", "timestamp", "verb"} <= set(body)
        return body


def _texts(query: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items()}
