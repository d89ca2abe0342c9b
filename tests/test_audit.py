"""What the dependency audit of ``make lint`` says of what it found, and of what it could not ask."""

from __future__ import annotations

from tests.audit import verdict

WELL = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found"}


def test_a_vulnerability_fails() -> None:
    code, said = verdict([WELL, BAD, UNKNOWN])
    assert code == 1
    assert "b 2: CVE-1, fixed in 2.1" in said


def test_what_was_not_audited_is_not_called_well() -> None:
    assert verdict([WELL]) == (0, "1 packages audited, none with known vulnerabilities")
    assert verdict([UNKNOWN]) == (0, "NOT AUDITED: the advisory service cannot be reached from here")
    code, said = verdict([WELL, UNKNOWN])
    assert code == 0
    assert said.endswith("NOT AUDITED: c")
