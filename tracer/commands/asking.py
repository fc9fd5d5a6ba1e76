"""Options of the commands that ask a server: what is sent, and where to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PROMPT = "The prompt"
SERVER = "The server"
ADDRESS = "http://127.0.0.1:30000"

Url = Annotated[str, typer.Option("--url", help="Address of the server.", rich_help_panel=SERVER)]
Token = Annotated[
    str | None, typer.Option("--token", help="The token that 'serve --token' asks for.", rich_help_panel=SERVER)
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="SGLANG_API_KEY", help="The server's API key.", rich_help_panel=SERVER),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1.0, help="Seconds to wait for an answer.", rich_help_panel=SERVER)
]
Text = Annotated[str | None, typer.Option("--prompt", help="Text, sent as it is.", rich_help_panel=PROMPT)]
TextFile = Annotated[
    Path | None, typer.Option("--prompt-file", help="A file with the text.", rich_help_panel=PROMPT)
]
InputIds = Annotated[
    Path | None, typer.Option("--input-ids", help="A file with token ids.", rich_help_panel=PROMPT)
]
FromDump = Annotated[
    str | None,
    typer.Option(
        "--from-dump",
        metavar="FILE[#i]",
        help="A training dump: its own token ids are sent.",
        rich_help_panel=PROMPT,
    ),
]
Messages = Annotated[
    Path | None,
    typer.Option(
        "--messages", help="A JSON file with chat messages, sent through the template.", rich_help_panel=PROMPT
    ),
]
Whole = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="With --from-dump: send the sample's last answer, too, as part of the prompt.",
        rich_help_panel=PROMPT,
    ),
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.", rich_help_panel=PROMPT)]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the trace on the server, too.", rich_help_panel=SERVER)]
MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", min=1, help="Tokens to generate.", rich_help_panel=PROMPT)
]
