#!/usr/bin/env python3
"""Finds dead links: each relative link of a Markdown page below FOLDER must lead to a file or folder below FOLDER.

    tests/judges/release/check_links.py FOLDER...

A link inside a block of code is none.
"""

import os
import re
import sys
from pathlib import Path

# [text](target), ![text](target), [name]: target, <a href="target"> and <img src="target">.
LINKS = re.compile(r"""\]\(<?([^)\s>]+)|^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?\s*$|<(?:a|img)\s[^>]*?(?:href|src)=["']([^"']+)""", re.MULTILINE)
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def dead(folder):
    """The number of relative links, and a line for each that leads nowhere."""
    count, lines = 0, []
    for page in sorted(folder.rglob("*.md")):
        text = CODE.sub("", page.read_text())
        for target in (next(filter(None, match)) for match in LINKS.findall(text)):
            path = target.partition("#")[0]
            if not path or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            count += 1
            to = page.parent / path
            # A link out of the folder may lead to something on this machine, and to nothing on another.
            if not Path(os.path.normpath(to)).is_relative_to(folder):
                lines.append(f"{page.relative_to(folder)}: {target} leads out of the folder")
            elif not to.exists():
                lines.append(f"{page.relative_to(folder)}: {target} leads nowhere")
    return count, lines


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    status = 0
    for folder in (Path(name).resolve() for name in sys.argv[1:]):
        count, lines = dead(folder)
        if not count:
            lines.append("there are no links, which cannot be right")
        print("\n".join(f"{folder}: {line}" for line in lines) or f"{folder}: {count} relative links, all lead to a file")
        status |= bool(lines)
    return status


if __name__ == "__main__":
    sys.exit(main())
