"""The page docs/benchmarks.md from one commit: every command on it, one after the other.

    python benchmarks/again.py                      # all sections; hours
    python benchmarks/again.py device serving       # only these
    python benchmarks/again.py --without gpu        # all but these: not every machine can measure everything
    python benchmarks/again.py --check              # which commit each section is from; exit code 1 if not the same

Each command writes its own section. One that fails is named at the end, and its section stays as it was.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time

from page import DOCS

SECTION = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?```bash\n(?P<command>.*?)\n```.*?<!-- end (?P=name) -->", re.S)
COMMIT = re.compile(r"; commit (\S+)\.$", re.M)


def main() -> int:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    sections = {found["name"]: found for found in SECTION.finditer(page)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--without", nargs="+", default=[], metavar="SECTION")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    unknown = {*asked.sections, *asked.without} - sections.keys()
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    names = [name for name in asked.sections or sections if name not in asked.without]
    if asked.check:
        commits = {name: (COMMIT.findall(sections[name][0]) or ["unknown"])[-1] for name in names}
        print("\n".join(f"{commit:10} {name}" for name, commit in commits.items()))
        return int(len(set(commits.values())) > 1)
    failed = []
    for name in names:
        began, (_, *words) = time.monotonic(), shlex.split(sections[name]["command"])
        print(f"{name}: {shlex.join(words)}", flush=True)
        code = subprocess.run([sys.executable, *words], cwd=DOCS.parent, stdout=subprocess.DEVNULL).returncode
        print(
            f"{name}: {f'exit code {code}' if code else 'written'} after {time.monotonic() - began:.0f} s", flush=True
        )
        failed += [name] * (code != 0)
    if failed:
        print(f"not measured again: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
