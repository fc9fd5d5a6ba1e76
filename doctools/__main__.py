"""The documentation's commands.

``python -m doctools pages`` writes the generated pages, ``check`` says which are out of date, ``output [PAGE...]`` writes
what the pages' commands print now, ``desk [FOLDER...]`` lays out the files that those commands name, ``changes`` prints the
release notes (``--check``: only looks at the fragments).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from doctools import blocks, changes, pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="doctools", description=__doc__)
    parser.add_argument("what", choices=("pages", "check", "output", "desk", "changes"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="changes: only look whether they can be used")
    options = parser.parse_args()
    if options.what == "changes":
        text = changes.notes(changes.fragments())
        print("" if options.check else text, end="")
    elif options.what == "desk":
        for folder in options.files or [Path("desk")]:
            blocks.desk(folder)
            print(f"{folder}: the files that the pages name")
    elif options.what == "output":
        update_output([path.resolve() for path in options.files] or blocks.pages())
    else:
        sys.exit(write_pages(write=options.what == "pages"))


def write_pages(*, write: bool) -> int:
    """Write the generated pages that changed, or only name them: then 1 where there are any."""
    stale = {p: t for p, t in pages.generated().items() if not p.exists() or p.read_text(encoding="utf-8") != t}
    for path, text in stale.items():
        print(f"{path.relative_to(pages.ROOT)}{'' if write else ' is out of date; run `make docs-pages`'}")
        if write:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and not write else 0


def update_output(files: list[Path]) -> None:
    """Write into every page what its commands print now."""
    for page in files:
        with tempfile.TemporaryDirectory() as folder:
            blocks.desk(Path(folder))
            page.write_text(blocks.updated(page, Path(folder)), encoding="utf-8")
        print(page.relative_to(pages.ROOT))


if __name__ == "__main__":
    main()
