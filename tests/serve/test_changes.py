"""`GET /changes`: an account's changes on the main port, if the setting says so, and all changes on the admin port."""

from __future__ import annotations

from pathlib import Path

import httpx

from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.wire import TOKEN_HEADER
from pipeline.store.files.durable import Folder
from pipeline.store.files.lock import read_token
from tests.serve.live import LiveServer, live_server
from tests.serve.served import serving


def test_an_account_reads_its_changes(live: LiveServer, hopper: bytes) -> None:
    with live.http("changes") as http:
        start = http.get("/changes").json()["next"]
        named = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "g"}
        (face,) = http.post("/people", content=hopper, headers=named).json()["identifiedFaces"]
        person = face["personId"]
        http.put(f"/people/{person}", json={"name": "Hopper"})
        http.delete(f"/people/{person}")
        page = http.get("/changes", params={"since": start}).json()
        assert [(entry["kind"], entry["persons"], entry["gone"]) for entry in page["changes"]] == [
            ("delete", [], [person])
        ], "of somebody who was deleted only that is told"
        assert page["changes"][0]["origin"] == "api"
        assert "Grace" not in str(page)
        assert not page["more"]
        assert http.get("/changes", params={"since": page["next"]}).json()["changes"] == []
    with live.http("changes", user="bob") as other:
        assert person not in other.get("/changes").text


def test_changes_that_are_not_known_answer_410(live: LiveServer) -> None:
    with live.http("changes") as http:
        gone = http.get("/changes", params={"since": 10**9})
        assert (gone.status_code, gone.json()["errorReason"], gone.json()["start"]) == (410, "changes-unknown", 0)
        assert http.get("/changes", params={"since": "x"}).status_code == 400


def test_changes_are_not_answered_unless_the_setting_says_so(tmp_path: Path, extractor: BatchExtractor) -> None:
    with live_server(tmp_path / "store", extractor, serve__changes=False) as server, server.http("main") as http:
        assert http.get("/changes").status_code == 404


def test_the_admin_port_tells_the_changes_of_all_accounts(tmp_path: Path, extractor: BatchExtractor) -> None:
    with serving(tmp_path / "store", extractor) as served:
        headers = {TOKEN_HEADER: read_token(Folder(tmp_path / "store"))}
        url = f"{served.url}/changes"
        assert httpx.get(url).status_code == 403
        assert httpx.get(url, headers=headers).json()["changes"] == []
        assert httpx.get(url, headers=headers, params={"since": 10**9}).status_code == 410
