"""Talks to a live SGLang server with the plugin on: what it is, one traced request, its trace file.

Standard library only: the command line must start at once, and these are a handful of small requests.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drafttrace.tracer.errors import ServerProblem
from drafttrace.tracer.log import say

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Health:
    """What ``GET /drafttrace/health`` says; ``raw`` is the whole answer."""

    plugin_version: str
    sglang_version: str
    context_length: int | None
    vocab_size: int | None
    layers: int | None
    hooks_missing: tuple[str, ...]
    raw: Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One of text, token ids or chat messages."""

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class Sampling:
    """How the traced request is generated. Greedy, so that the same prompt gives the same trace."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Generated:
    """The server's answer: text, output ids (where it gives them) and SGLang's ``meta_info``."""

    text: str
    output_ids: tuple[int, ...]
    meta_info: Mapping[str, Any]

    @property
    def accept_length(self) -> float | None:
        """Output tokens per verify round, as the server counts it; None without speculation."""
        value = self.meta_info.get("spec_accept_length")
        return None if value is None else float(value)


class Client:
    """One server. ``url`` is its base address, ``api_key`` what SGLang was started with (``--api-key``)."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 30.0) -> None:
        address = url if "://" in url else f"http://{url}"
        if not address.startswith(("http://", "https://")):
            raise ServerProblem(f"The address '{url}' is not http or https; give one like http://127.0.0.1:30000.")
        self.url = address.rstrip("/")
        self._api_key = api_key
        self._timeout = timeout

    def health(self) -> Health:
        """The plugin's state. Raises ServerProblem when there is no server, no plugin, or a hook is missing."""
        try:
            raw = self._json("GET", "/drafttrace/health")
        except _Refused as refusal:
            if refusal.status == 404:
                raise ServerProblem(
                    f"The server at {self.url} runs without the drafttrace plugin; install drafttrace beside SGLang "
                    "and start it with 'drafttrace serve -- <your sglang arguments>'."
                ) from None
            raise self._problem(refusal) from None
        if not raw.get("supported", False):
            reason = raw.get("reason") or f"it does not support SGLang {raw.get('sglang_version')}"
            raise ServerProblem(
                f"The drafttrace plugin at {self.url} is off: {_sentence(reason)} Run 'drafttrace doctor' there."
            )
        hooks = raw.get("hooks") or []
        missing = tuple(
            f"{hook.get('target') or hook.get('name')}: {hook.get('error') or 'not applied'}"
            for hook in hooks
            if not hook.get("applied")
        )
        return Health(
            plugin_version=str(raw.get("plugin_version")),
            sglang_version=str(raw.get("sglang_version")),
            context_length=raw.get("context_length"),
            vocab_size=(raw.get("target") or {}).get("vocab_size"),
            layers=(raw.get("target") or {}).get("n"),
            hooks_missing=missing,
            raw=raw,
        )

    def start_trace(self, taps: Mapping[str, Any], *, token: str | None = None) -> tuple[str, str]:
        """Ask for a trace; returns its id and the request id that switches it on."""
        body: dict[str, Any] = {"taps": dict(taps)}
        if token is not None:
            body["token"] = token
        try:
            answer = self._json("POST", "/drafttrace/traces", body)
        except _Refused as refusal:
            raise self._problem(refusal) from None
        return str(answer["id"]), str(answer["rid"])

    def trace_state(self, trace_id: str) -> Mapping[str, Any]:
        """``{"state": "waiting" | "recording" | "complete" | "incomplete", "bytes", "rows", "reason", "ranks"}``."""
        try:
            return self._json("GET", f"/drafttrace/traces/{trace_id}")
        except _Refused as refusal:
            raise self._problem(refusal) from None

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        rid: str | None = None,
        extra_key: str | None = None,
        timeout: float = 600.0,
    ) -> Generated:
        """One request through SGLang's own API. ``extra_key`` keeps it apart in the prefix cache."""
        body: dict[str, Any]
        if prompt.messages is not None:
            path, body = "/v1/chat/completions", self._chat_body(prompt, sampling)
        else:
            path = "/generate"
            body = {
                "sampling_params": {
                    "max_new_tokens": sampling.max_new_tokens,
                    "temperature": sampling.temperature,
                    "ignore_eos": sampling.ignore_eos,
                }
            }
            if prompt.input_ids is not None:
                body["input_ids"] = list(prompt.input_ids)
            else:
                body["text"] = prompt.text
        if rid is not None:
            body["rid"] = rid
        if extra_key is not None:
            body["extra_key"] = extra_key
        try:
            answer = self._json("POST", path, body, timeout=timeout)
        except _Refused as refusal:
            raise ServerProblem(
                f"The server at {self.url} refused the request: {_sentence(refusal.text)} {_remedy(refusal.text)}"
            ) from None
        if prompt.messages is None:
            return Generated(
                text=str(answer.get("text", "")),
                output_ids=tuple(answer.get("output_ids") or ()),
                meta_info=answer.get("meta_info") or {},
            )
        choice = answer["choices"][0]
        return Generated(
            text=str((choice.get("message") or {}).get("content") or ""),
            output_ids=tuple(choice.get("output_ids") or ()),
            meta_info=choice.get("meta_info") or answer.get("meta_info") or {},
        )

    @staticmethod
    def _chat_body(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        return {
            "model": "default",
            "messages": [dict(message) for message in prompt.messages or ()],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "ignore_eos": sampling.ignore_eos,
            "return_meta_info": True,
        }

    def wait_for_trace(self, trace_id: str, *, timeout: float = 60.0) -> Mapping[str, Any]:
        """The state once the file is finished. Raises ServerProblem when it is not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        pause = 0.02
        while True:
            state = self.trace_state(trace_id)
            if state["state"] in {"complete", "incomplete"}:
                return state
            if time.monotonic() > deadline:
                raise ServerProblem(
                    f"The trace {trace_id} was still '{state['state']}' {timeout:.0f} s after the answer came; "
                    f"look at {self.url}/drafttrace/health for errors of the plugin."
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def download(self, trace_id: str, out: IO[bytes], *, progress: Progress | None = None) -> int:
        """Write the trace file into ``out``; returns its size in bytes."""
        done = 0
        try:
            with self._open("GET", f"/drafttrace/traces/{trace_id}/file", None, self._timeout) as answer:
                length = answer.headers.get("Content-Length")
                total = int(length) if length else None
                while block := answer.read(1 << 20):
                    out.write(block)
                    done += len(block)
                    if progress is not None:
                        progress(done, total)
        except _Refused as refusal:
            raise self._problem(refusal) from None
        if total is not None and done != total:
            raise ServerProblem(
                f"The download of trace {trace_id} ended after {done} of {total} bytes; run the command again."
            )
        return done

    def delete(self, trace_id: str) -> None:
        """Remove the trace on the server."""
        try:
            self._json("DELETE", f"/drafttrace/traces/{trace_id}")
        except _Refused as refusal:
            raise self._problem(refusal) from None

    def _problem(self, refusal: _Refused) -> ServerProblem:
        if refusal.status in {401, 403}:
            return ServerProblem(
                f"The server at {self.url} refused access ({refusal.status}: {_sentence(refusal.text)}); "
                "give --api-key, and --token if it was started with one (in Python: api_key and token)."
            )
        return ServerProblem(f"The server at {self.url} answered {refusal.status}: {_told(refusal)}")

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Mapping[str, Any]:
        with self._open(method, path, body, timeout or self._timeout) as answer:
            data = answer.read()
        try:
            parsed = json.loads(data)
        except ValueError:
            raise ServerProblem(
                f"The answer of {self.url}{path} is no JSON ({data[:60]!r}); give the address of an SGLang server."
            ) from None
        if not isinstance(parsed, dict):
            raise ServerProblem(
                f"The answer of {self.url}{path} is no JSON object; give the address of an SGLang server."
            )
        return parsed

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float) -> Any:
        import urllib.error  # 20 ms that `drafttrace --help` does without
        import urllib.request

        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        say("%s %s%s, %d bytes", method, self.url, path, len(data or b""))
        try:
            return _opener(self.url).open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise _Refused(error.code, _error_text(error.read())) from None
        except (OSError, ValueError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or error
            reason = getattr(reason, "strerror", None) or reason  # without its number
            raise ServerProblem(
                f"No answer from {self.url} ({reason}); check the address, or wait until the server is up."
            ) from None


def _opener(url: str) -> Any:
    """Proxies of the environment apply, but never to this machine's own addresses."""
    import urllib.request
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    local = host == "localhost" or host == "::1" or host.startswith("127.")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))


class _Refused(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


def _error_text(data: bytes) -> str:
    """The sentence inside SGLang's or the plugin's JSON error, or the start of whatever came."""
    try:
        parsed = json.loads(data)
    except ValueError:
        return data[:300].decode("utf-8", "replace").strip()
    found: Any = parsed
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return found if isinstance(found, str) else json.dumps(found)[:300]


def _told(refusal: _Refused) -> str:
    """What the server said, and where to look on; the plugin's own answers say themselves what to do."""
    return f"{_sentence(refusal.text)} {_look_where(refusal.status)}".rstrip()


_OURS = {404, 409, 429, 507}


def _look_where(status: int) -> str:
    """What to do about an answer that is no answer."""
    if status == 503:
        return "Wait until the server is ready, then run the command again."
    if status in _OURS:
        return ""
    return "Look for the reason in the server's log."


def _remedy(refusal: str) -> str:
    """What to change about a request that SGLang refused; only the server counts the tokens of a text."""
    if "context length" in refusal:
        return "Lower --max-new-tokens or use a shorter prompt."
    return "Change the request, or look for the reason in the server's log."


def _sentence(text: str) -> str:
    line = " ".join(str(text).split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


def move_into_place(part: Path, out: Path, *, force: bool) -> bool:
    """Move a finished download to ``out``. Without ``force`` an existing file is left alone: returns False then."""
    if force:
        part.replace(out)
        return True
    try:
        # A hard link fails when the name is taken, so two downloads cannot overwrite each other.
        out.hardlink_to(part)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if out.exists():
            return False
        shutil.move(part, out)
        return True
    part.unlink()
    return True
