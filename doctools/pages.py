"""Reference pages that the code itself writes: nothing in them can be out of date."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doctools.command_page import command_line
from doctools.formats_page import formats
from doctools.markdown import cell, docstring, table
from doctools.pairs_page import README, REAL_MODEL, pairs_page, real_model_page
from doctools.python_page import python_interface
from doctools.readme import readme

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "compare/result.schema.json"
CANARY = ROOT / "tracer/canary.schema.json"
NOTE = "<!-- Made by `make docs-pages`; do not edit. -->"


def generated() -> dict[Path, str]:
    """Every generated page and its text."""
    folder = ROOT / "docs/reference"
    makers = {
        "canary.md": canary,
        "command-line.md": command_line,
        "findings.md": findings,
        "formats.md": formats,
        "result.md": result,
        "trace-format.md": trace_format,
        "python.md": python_interface,
        "sglang.md": sglang,
        "thresholds.md": thresholds,
    }
    made = {folder / name: "\n".join([NOTE, "", *maker()]).rstrip() + "\n" for name, maker in makers.items()}
    others = {SCHEMA: result_schema(), README: pairs_page(), REAL_MODEL: real_model_page()}
    return {**made, ROOT / "README.md": readme(), **others}


# --- findings ------------------------------------------------------------------------------------------------------


def findings() -> Iterator[str]:
    from drafttrace.catalogue import causes
    from drafttrace.compare.vocabulary import classes

    yield "# Findings"
    yield ""
    yield (
        "The closed vocabulary of `findings[].id`. Several may hold at once: faults stack, and drafttrace never stops at "
        "the first. A finding of severity `fault` makes the verdict a mismatch, a `note` never does. The remedy here is "
        "the general one; the finding prints the line for the case at hand."
    )
    yield ""
    yield from table(
        "class",
        "ids",
        rows=[(kind, ", ".join(f"[`{name}`](#{name})" for name in names)) for kind, names in classes().items()],
    )
    for kind, names in classes().items():
        yield f"## {kind.capitalize().replace('-', ' ')}"
        yield ""
        for name in names:
            cause = causes()[name]
            yield f"### {name}"
            yield ""
            yield _prose(cause.what)
            yield ""
            yield f"* **Signature:** {_prose(cause.signature)}"
            yield f"* **Remedy:** {_prose(cause.remedy)}"
            cases = ", ".join(_case(case) for case in cause.cases)
            yield f"* **Public cases:** {cases or 'none known; the tests put it in'}"
            yield ""


def _prose(text: str) -> str:
    return re.sub(r"([<>_*\[\]])", r"\\\1", text)


def _case(case: str) -> str:
    from drafttrace.catalogue import PROJECTS

    project, _, number = case.partition("#")
    if project not in PROJECTS:
        return case
    return f"[{case}](https://github.com/{PROJECTS[project]}/issues/{number})"


# --- result --------------------------------------------------------------------------------------------------------


def result() -> Iterator[str]:
    schema = json.loads(SCHEMA.read_text())
    yield "# Result"
    yield ""
    yield (
        "What `drafttrace diff --json` writes, and `drafttrace report` and `drafttrace.load` read. "
        f"`schema` is `{schema['$id']}`; the JSON Schema is installed as `drafttrace/compare/result.schema.json`. A number "
        "that is not finite is null. A newer drafttrace may add fields, and never changes the meaning of one."
    )
    yield ""
    yield from _fields(schema)
    yield '`findings[].id` is one of [the findings](findings.md); `severity` is "fault" or "note".'
    yield ""
    for name, part in schema["$defs"].items():
        yield f"## {name}"
        yield ""
        if part.get("description"):
            yield part["description"].replace("[", "\\[").replace("<", "\\<")
            yield ""
        yield from _fields(part)


def result_schema() -> str:
    """The result's JSON Schema, with the findings that the code has now; all else in it is written by hand."""
    from drafttrace.compare.vocabulary import KINDS, entries

    schema = json.loads(SCHEMA.read_text())
    fields = schema["$defs"]["Finding"]["properties"]
    fields["id"]["enum"] = sorted(entries())
    fields["class"]["enum"] = list(KINDS)
    return json.dumps(schema, indent=1) + "\n"


def _fields(part: Mapping[str, Any]) -> Iterator[str]:
    rows = [(f"`{name}`", _kind(value)) for name, value in part.get("properties", {}).items()]
    yield from table("field", "type", rows=rows)


def _kind(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_kind(one) for one in value["anyOf"])
    if "enum" in value:
        choices = ", ".join(json.dumps(one) for one in value["enum"])
        return choices if len(value["enum"]) < 9 else "one of a closed list"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if value.get("type") == "array":
        items = _kind(value.get("items", {}))
        return f"list of ({items})" if " or " in items else f"list of {items}"
    kind = value.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


# --- canary --------------------------------------------------------------------------------------------------------


def canary() -> Iterator[str]:
    schema = json.loads(CANARY.read_text())
    yield "# Canary"
    yield ""
    yield (
        "What `drafttrace watch --json FILE` appends, and with `--json -` prints: one JSON object per line, one line per "
        f"request. `schema` is `{schema['$id']}`; the JSON Schema is installed as "
        "`drafttrace/tracer/canary.schema.json`. A number that is not finite is null. A newer drafttrace may add fields, "
        "and never changes the meaning of one. How to read it: [Watch a server](../how-to/watch.md)."
    )
    yield ""
    rows = [(f"`{name}`", _kind(value), cell(value["description"])) for name, value in schema["properties"].items()]
    yield from table("field", "type", "meaning", rows=rows)
    yield "`drift` holds ids of [the findings](findings.md), most often `decay` and `cold-warm`."
    yield ""
    yield "The exit code of `watch` is 1 where some `drift` is not empty, and 2 where every line has a `problem`. A line:"
    yield ""
    yield "```json"
    yield _canary_line()
    yield "```"


def _canary_line() -> str:
    from drafttrace.tracer.canary import Run

    example = Run(
        number=3,
        utc="2026-11-30T05:40:01Z",
        kind="warm",
        verdict="mismatch",
        rows=31,
        aux_drift=(0.0, 0.31, 0.002),
        limit=0.035,
        accept_length=1.07,
        first_accept_length=2.41,
        drift=("cold-warm",),
        trace="drafttrace-canary/2026-11-30T054001Z-warm.h5",
        limits=(0.035, 0.035, 0.035),
        repeats=(0.0, 0.0, 0.0),
    )
    return json.dumps(example.to_json())


# --- trace ---------------------------------------------------------------------------------------------------------

_ROW_MEANING = {
    "position": "token position in the request, from 0",
    "token_id": "the token at that position, -1 where it is not known",
    "phase": "the forward pass that computed the row, see below",
    "round": "draft-verify round, -1 in prefill",
    "accepted": "0 rejected, 1 in the output, 2 unknown",
    "frame": "number of the forward pass in the trace",
    "graph": "1 where a CUDA graph was replayed",
    "source": "0 read in a hook, 1 from a static buffer after a replay, 2 at the Python seam",
    "live_rows": "rows of the whole batch that belong to a request",
    "padded_rows": "rows of the batch after padding",
    "cached_prefix": "tokens of the request that the prefix cache supplied",
    "rank": "tensor-parallel rank",
    "present": "bit mask of the tensors that the row has; the bits are named by the attribute `present_bits`",
    "step": "draft step, -1 where there is none (draft rows only)",
}


def trace_format() -> Iterator[str]:
    from drafttrace.tracer.capture import Phase
    from drafttrace.tracer.trace import schema

    yield "# Trace format"
    yield ""
    yield (
        f"HDF5, `format` = `{schema.FORMAT}`, `format_version` = {schema.FORMAT_VERSION}. One file per traced request, "
        "append-only, readable while it is written (SWMR) and up to the last flushed frame after the writer was "
        "killed. There is no pickle in it. Any HDF5 viewer opens it; one that follows NeXus (H5Web, silx) plots "
        "the norm of every slot over the token position when the file is opened."
    )
    yield ""
    yield "```text"
    yield from (
        "/                  attributes: format, format_version, complete, incomplete_reason, created_utc, tool_version,",
        "                   request_id, NX_class, default",
        "/about/*           JSON texts: environment, server_args, target_config, draft_config, wiring, request, weights,",
        "                   layout",
        "/tokens            ids (prompt and output), prompt_length",
        "/target/rows       one record per recorded row",
        "/target/aux/{i}    [rows, H] slot i, as the target hands it over",
        "/target/embed      [rows, H]      /target/last   [rows, H]",
        "/target/boundary/{k}  [rows, H] boundary B(k) of a layer sweep; may cover only the first rows",
        "/draft/rows        one record per recorded row of the draft",
        "/draft/...         hidden_in, fc_in, fc_out, embed_in, hidden_out, topk/draft_ids, topk/ids, topk/logits",
        "/probes            name, expected, fired, rows, dropped of every tap",
        "/padding           frame, tap, hash: the first padding row of every tap in a pass whose batch was padded",
        "/target/sums       [rows, columns] what the bytes of every record and of every tensor's row add up to",
        "/draft/sums        the same of the draft",
        "/ranks/{r}         row hashes of what ranks should hold alike",
        "/summary           the plot that viewers open",
    )
    yield "```"
    yield ""
    yield (
        "Every text below `/about` is an array of pieces of 128 bytes: the JSON is their concatenation, without the NUL "
        "bytes at the end (`b''.join(file['about/wiring'][()])` in h5py). SWMR writing needs a fixed length."
    )
    yield ""
    yield (
        "bf16 is a genuine 16-bit HDF5 float (sign 1, exponent 8, mantissa 7, bias 127): bit-exact, and h5py, h5dump, "
        "silx, h5glance and H5Web in Jupyter show numbers. In a browser alone, H5Web reads with h5wasm, which has no "
        "16-bit floats: it draws the plot, whose curves are float32, and not the bf16 matrices. The attribute `dtype` of "
        "a tensor names its format."
    )
    yield ""
    yield (
        "The sums find bytes that changed after they were written: a row's bytes as little-endian 64-bit words (the rest "
        "as one short word), added modulo 2^64; the attribute `summed` names the columns. Traces of older writers have "
        "none, and are read without the check."
    )
    yield ""
    yield "## Fields of a row"
    yield ""
    names = schema.DRAFT_ROW.names or ()
    yield from table(
        "field",
        "type",
        "meaning",
        rows=[(f"`{name}`", f"`{schema.DRAFT_ROW[name].name}`", _ROW_MEANING[name]) for name in names],
    )
    yield "## Phases"
    yield ""
    yield from table("value", "phase", rows=[(str(int(one)), f"`{one.name.lower()}`") for one in Phase])
    yield "## Reading one"
    yield ""
    yield "With drafttrace:"
    yield ""
    yield "```python"
    yield "import drafttrace"
    yield ""
    yield 'trace = drafttrace.open("trace.h5")'
    yield "rows = trace.slots[0].rows.floats(0, 8)  # float32 [8, H]"
    yield "accepted = trace.table.position[trace.table.accepted == 1]"
    yield "```"
    yield ""
    yield "With h5py alone:"
    yield ""
    yield "```python"
    yield "import h5py"
    yield ""
    yield 'with h5py.File("trace.h5") as file:'
    yield '    position = file["target/rows"]["position"]'
    yield '    slot = file["target/aux/0"][:8]'
    yield '    assert file.attrs["complete"]'
    yield "```"


# --- SGLang, thresholds --------------------------------------------------------------------------------------------


def sglang() -> Iterator[str]:
    from drafttrace.compare.id_rules import IdRule
    from drafttrace.hooks.config import Settings
    from drafttrace.hooks.sglang_engine.versions import HTTP_HOOKS, NEWEST, OLDEST, SCHEDULER_HOOKS

    yield "# SGLang"
    yield ""
    yield (
        f"drafttrace works with SGLang {'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}, the releases with "
        "the plugin framework. Outside of that window the recorder stays off and says so; `drafttrace doctor` looks "
        "whether every hook fits the SGLang that is installed, without starting a server."
    )
    yield ""
    yield "## What is hooked"
    yield ""
    yield from table(
        "hook",
        "symbol",
        "needed",
        rows=[
            (f"`{h.name}`", f"`{h.target}`", "yes" if h.needed else "where it exists")
            for h in (*SCHEDULER_HOOKS, *HTTP_HOOKS)
        ],
    )
    yield "## How layer ids become boundaries"
    yield ""
    yield (
        "SGLang reads the ids from `eagle_config.eagle_aux_hidden_state_layer_ids` of the draft's config, and only there. "
        "What an id means depends on the class of the target and on the release; `drafttrace check` applies the rule "
        "of the installed one, and a trace records the rule that the running server applied."
    )
    yield ""
    yield from table("rule", "meaning", rows=[(f"`{rule.name.lower()}`", cell(rule.value)) for rule in IdRule])
    yield "## What the environment asks of the plugin"
    yield ""
    yield "`drafttrace serve` sets these; a server that you start yourself reads them, too."
    yield ""
    mib = {"max_trace_bytes", "max_dir_bytes", "queue_bytes", "graph_bytes"}
    names = {"directory": "DRAFTTRACE_DIR"}
    rows = [("`DRAFTTRACE`", "`1` switches the plugin on", "off")]
    for field in dataclasses.fields(Settings):
        variable = names.get(field.name, f"DRAFTTRACE_{field.name.upper()}")
        value = "required" if field.default is dataclasses.MISSING else field.default
        if field.name in mib and isinstance(field.default, int):
            value = f"{field.default} ({field.default >> 20} MiB)"
        shown = "1" if value is True else "" if value in (None, False) else str(value)
        rows.append((f"`{variable}`", f"`{field.name}`", shown))
    yield from table("variable", "setting", "default", rows=rows)
    yield from docstring(Settings)


def thresholds() -> Iterator[str]:
    from drafttrace.compare.thresholds import Thresholds

    yield "# Thresholds"
    yield ""
    yield (
        "What `--threshold NAME=VALUE` and `drafttrace.diff(..., thresholds={...})` take. A saved result can be judged "
        "again by others: `drafttrace report result.json --threshold match=0.02`."
    )
    yield ""
    yield from table(
        "name", "default", rows=[(f"`{f.name}`", f"{f.default}") for f in dataclasses.fields(Thresholds)]
    )
    yield from docstring(Thresholds)
