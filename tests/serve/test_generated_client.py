"""A client that openapi-python-client generates from the description, in a round trip."""

from __future__ import annotations

import base64
import importlib
import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.serve.handlers import description
from tests.serve.conformance.photos import opened
from tests.serve.live import PASSWORD, LiveServer

PACKAGE = "generated_facepipe_client"


@pytest.fixture
def package(live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the generated package, which can be imported."""
    generator = shutil.which("openapi-python-client")
    if generator is None:
        pytest.skip("openapi-python-client is not installed")
    pytest.importorskip("attrs", reason="attrs, which clients of openapi-python-client need, is not installed")
    file = tmp_path / "openapi.json"
    file.write_bytes(httpx.get(f"{live.url}/openapi.json").content)
    command = [generator, "generate", "--path", str(file), "--meta", "none", "--output-path", str(tmp_path / PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "WARNING" not in done.stdout + done.stderr  # it tells of each operation and answer that it leaves out
    monkeypatch.syspath_prepend(str(tmp_path))
    return PACKAGE


class Generated:
    """The generated package with its client."""

    def __init__(self, package: str, live: LiveServer) -> None:
        self.package = package
        self.client = self.module("client").AuthenticatedClient(
            base_url=live.url,
            token=f"alice:{base64.b64encode(PASSWORD.encode()).decode()}",
            prefix="",
            auth_header_name="X-RPC-AUTHORIZATION",
        )

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.package}.{name}")

    def photo(self, data: bytes) -> Any:
        return self.module("types").File(payload=io.BytesIO(data))

    def ask(self, operation: str, *arguments: Any, **options: Any) -> Any:
        sync = self.module(f"api.{operation}").sync
        return sync(*arguments, client=self.client, x_rpc_directory="generated", **options)


@pytest.fixture
def generated(package: str, live: LiveServer) -> Iterator[Generated]:
    made = Generated(package, live)
    yield made
    made.client.get_httpx_client().close()


def test_a_round_trip(generated: Generated, hopper: bytes) -> None:
    module, ask = generated.module, generated.ask
    for operations in description()["paths"].values():
        for operation in operations.values():
            module(f"api.{operation['tags'][0]}.{operation['operationId'].replace('-', '_')}")
    posted = ask(
        "people.insert_or_recognise", body=generated.photo(hopper), x_rpc_person_name="Grace", x_rpc_external_id="e1"
    )
    (face,) = posted.identified_faces
    assert (face.new_id, face.name, posted.account_updated) == (True, "Grace", True)
    change = module("models.person_change").PersonChange(name="Grace H.", tags=["navy"])
    ask("people.change_a_record", face.person_id, body=change)
    (person,) = ask("people.get_a_record", face.person_id).people
    assert (person.name, person.external_id, person.tags) == ("Grace H.", "e1", ["navy"])
    assert ask("people.list_persons", count=1).person_collection_response.total_count == 1
    picture = ask("images.get_a_face", face.person_id).payload.read()
    assert opened(picture).width > 40
    assert ask("images.get_an_object", person.image_uri.rpartition("/")[2]).payload.read() == picture
    ask("people.delete_a_record", face.person_id)
    assert ask("people.get_a_record", face.person_id).error_reason == "person-unknown"


def test_a_header_that_the_user_sets_has_its_effect(generated: Generated, hopper: bytes) -> None:
    """The client sends the defaults of the query as well."""

    def inserted(**options: Any) -> bool:
        who = {"x_rpc_person_name": "Grace", "x_rpc_external_id": "e1"}
        posted = generated.ask("people.insert_or_recognise", body=generated.photo(hopper), **who, **options)
        (face,) = posted.identified_faces
        if face.new_id is not True:
            return False
        generated.ask("people.delete_a_record", face.person_id)
        return True

    assert [inserted(x_rpc_min_size=5000.0), inserted(x_rpc_min_size=5.0), inserted()] == [False, True, True]
    assert [inserted(x_rpc_min_size=5000.0, min_size=size) for size in (-1.0, 5.0)] == [False, True]
