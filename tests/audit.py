"""``python -m tests.audit``: are there known vulnerabilities in the versions of constraints.txt? A step of ``make lint``.

Exit code 1 when there are. Where the advisory service cannot be asked (no network, or a mirror that has packages only)
it says so and exits 0: that is no audit, and is not called one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
OPTIONS = "--no-deps --disable-pip --format json --progress-spinner off --timeout 10".split()


def main() -> int:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    # One first: where the service cannot be asked, the others would only be waited for.
    for part in (lines[:1], lines):
        try:
            found = ask(part)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"NOT AUDITED: pip-audit gave no result ({' '.join(str(error).split())[:200]})")
            return 0
        code, said = verdict(found)
        if code or "NOT AUDITED" in said:
            break
    print(said)
    return code


def ask(lines: list[str]) -> list[dict[str, Any]]:
    """pip-audit's findings, one entry a package. Raises ValueError with what it said instead."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", "-r", file.name, *OPTIONS],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if not done.stdout.strip():
        raise ValueError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it said nothing")
    dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return dependencies


def verdict(found: list[dict[str, Any]]) -> tuple[int, str]:
    """Exit code and text."""
    asked = [entry for entry in found if "skip_reason" not in entry]
    bad = [entry for entry in asked if entry.get("vulns")]
    if bad:
        lines = [
            f"  {entry['name']} {entry['version']}: {vuln['id']}, fixed in {', '.join(vuln['fix_versions']) or 'no version'}"
            for entry in bad
            for vuln in entry["vulns"]
        ]
        return 1, "\n".join([f"{len(bad)} of {len(asked)} packages have known vulnerabilities:", *lines])
    if not asked:
        return 0, "NOT AUDITED: the advisory service cannot be reached from here"
    if len(asked) < len(found):
        names = ", ".join(entry["name"] for entry in found if "skip_reason" in entry)
        return 0, f"{len(asked)} packages audited, none with known vulnerabilities; NOT AUDITED: {names}"
    return 0, f"{len(asked)} packages audited, none with known vulnerabilities"


if __name__ == "__main__":
    sys.exit(main())
