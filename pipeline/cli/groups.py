"""Groups of commands that help with names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import click


class CommandGroup(click.Group):
    """Knows the `former` names of its commands, and suggests a name where one is mistyped."""

    def __init__(self, *args: Any, former: Mapping[str, str] | None = None, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._former = former or {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self._former.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            # click itself suggests only commands that are loaded, and those before 8.4 none.
            raise click.UsageError(f"{error.message.rstrip('.')}. Did you mean '{close[0]}'?", ctx) from error
