"""How a server is made to break a rule: functions of the product are put out of the way, in the process that serves."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any


def replaced(module: str, attribute: str, change: Callable[[Any], Any]) -> None:
    """Puts `change(original)` in the place of `module.attribute`, or of `module.Class.attribute`."""
    owner: Any = importlib.import_module(module)
    *classes, name = attribute.split(".")
    for item in classes:
        owner = getattr(owner, item)
    original = getattr(owner, name)  # a typing error here is a mutant that would change nothing
    setattr(owner, name, change(original))


def asked(**changes: Any) -> Callable[[], None]:
    """Posts are taken as if they asked for something else; a value may be a function of the request."""

    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, data: bytes, request: Any) -> Any:
            changed = {key: value(request) if callable(value) else value for key, value in changes.items()}
            return post(self, account_id, directory, data, dataclasses.replace(request, **changed))

        return mutant

    return lambda: replaced("pipeline.identities.service", "IdentityService.post", change)


def answered(change_face: Callable[[Any], Any], order: Callable[[list[Any]], list[Any]] = list) -> Callable[[], None]:
    """The faces of every answer to a post are changed."""

    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(*arguments: Any) -> Any:
            result = post(*arguments)
            return dataclasses.replace(result, faces=order([change_face(face) for face in result.faces]))

        return mutant

    return lambda: replaced("pipeline.identities.service", "IdentityService.post", change)


def returning(module: str, attribute: str, value: Any) -> Callable[[], None]:
    """A function that does nothing but return `value`."""
    return lambda: replaced(module, attribute, lambda _: lambda *_args, **_how: value)


def constant(module: str, attribute: str, value: Any) -> Callable[[], None]:
    return lambda: replaced(module, attribute, lambda _: value)


def around(module: str, attribute: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """What a function returns is changed."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **how: change(original(*arguments, **how))

    return lambda: replaced(module, attribute, wrapped)


def face_image_of_any_account() -> None:
    from pipeline.errors import PersonUnknown

    def change(face_image: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, person_id: str) -> Any:
            for item in (account_id, 1, 2):
                try:
                    return face_image(self, item, directory, person_id)
                except PersonUnknown:
                    continue
            raise PersonUnknown

        return mutant

    replaced("pipeline.identities.service", "IdentityService.face_image", change)


def one_directory_for_all() -> None:
    from pipeline.serve.request_parsing import directory_name

    def mutant(request: Any) -> str:
        directory_name(request)
        return "main"

    replaced("pipeline.serve.handlers", "directory_name", lambda _: mutant)


def stranger_gets_the_first_person() -> None:
    def change(post: Callable[..., Any]) -> Callable[..., Any]:
        def mutant(self: Any, account_id: int, directory: str, data: bytes, request: Any) -> Any:
            result = post(self, account_id, directory, data, request)
            people = self.people(account_id, directory)
            if not people:
                return result
            faces = [face if face.person else dataclasses.replace(face, person=people[0]) for face in result.faces]
            return dataclasses.replace(result, faces=faces)

        return mutant

    replaced("pipeline.identities.service", "IdentityService.post", change)


def landmarks_of_the_image(face: dict[str, Any]) -> dict[str, Any]:
    for point in face["attributes"]["landmarks"].values():
        point["x"] = face["offsetX"] + point["x"] * face["relativeWidth"]
        point["y"] = face["offsetY"] + point["y"] * face["relativeHeight"]
    return face


def recognised_as_the_child() -> None:
    from pipeline.identities.views import root_view

    def mutant(directory: Any, person_id: str) -> Any:
        view = root_view(directory, person_id)
        child = directory.get(person_id)
        return view if view is None or child is None else dataclasses.replace(view, root=child)

    replaced("pipeline.identities.posts", "root_view", lambda _: mutant)


def objects_at_rest(change: Callable[[bytes], bytes]) -> Callable[[], None]:
    def changed(stored: Any) -> Any:
        return dataclasses.replace(stored, data=change(stored.data))

    return around("pipeline.identities.service", "IdentityService.stored_object", changed)


def objects_in_the_clear() -> None:
    def change(stored_object: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, account_id, directory, guid, at_rest: stored_object(  # noqa: ARG005
            self, account_id, directory, guid, at_rest=False
        )

    replaced("pipeline.identities.service", "IdentityService.stored_object", change)


def created_is_ok() -> None:
    def change(json_response: Callable[..., Any]) -> Callable[..., Any]:
        return lambda body, status=200, headers=None: json_response(body, 200 if status == 201 else status, headers)

    replaced("pipeline.serve.handlers", "json_response", change)


def any_password() -> None:
    def mutant(self: Any, user_id: str, _: str) -> int | None:
        credentials = self._lookup(user_id)
        return credentials.account_id if credentials else None

    replaced("pipeline.serve.auth", "Authenticator._verify", lambda _: mutant)


def without_key(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: {name: value for name, value in body.items() if name != key}


def ranking_reversed(ranked: list[list[Any]]) -> list[list[Any]]:
    return [item[::-1] for item in ranked]


def marked_new(face: Any) -> Any:
    return dataclasses.replace(face, inserted=face.person is not None)


def score_rounded(face: Any) -> Any:
    return dataclasses.replace(face, score=None if face.score is None else round(face.score, 4))
