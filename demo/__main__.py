"""``make demo``: python -m demo --pair tiny-kimi --out demo-output"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang_cpu.server import ServerDied, ServerTimeout

from demo.pairs import PAIRS
from demo.story import StoryFailed, say, tell
from drafttrace.tracer.errors import DrafttraceError


def main() -> int:
    """0 when the story holds: named, remedied, matching, and at least 1.5 times the accept length."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--pair", choices=PAIRS, default=next(iter(PAIRS)))
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    options = parser.parse_args()
    try:
        summary = tell(PAIRS[options.pair], options.out)
    except StoryFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except DrafttraceError as error:  # the real model cannot be had here, or the folder cannot be used
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (ServerDied, ServerTimeout) as error:
        print(f"demo: the server did not come up, its log lies in {options.out}/; {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\ndemo: stopped; what was made so far lies in {options.out}/", file=sys.stderr)
        return 130
    say(
        f"\n== accept length before {summary.accept_length_before:.2f}, after {summary.accept_length_after:.2f} "
        f"({summary.ratio:.2f} times), on the same {summary.prompts} prompts"
    )
    say(f"   found: {', '.join(summary.findings_before)}; afterwards: {summary.verdict_after}")
    say(f"   everything lies in {options.out}/ (report.md, before.json, after.json, summary.json, traces, logs)")
    if summary.ratio < 1.5:
        print(
            f"demo: the accept length rose only {summary.ratio:.2f} times, expected at least 1.5", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
