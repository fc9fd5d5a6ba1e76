"""``python -m doctools pages`` writes the generated pages; ``python -m doctools output PAGE...`` the printed output."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from doctools import blocks, pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="doctools", description=__doc__)
    parser.add_argument("what", choices=("pages", "output"))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.what == "pages":
        for path, text in pages.generated().items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(pages.ROOT))
        return
    for page in [path.resolve() for path in options.files] or blocks.pages():
        with tempfile.TemporaryDirectory() as folder:
            blocks.desk(Path(folder))
            page.write_text(blocks.updated(page, Path(folder)), encoding="utf-8")
        print(page.relative_to(pages.ROOT))


if __name__ == "__main__":
    main()
