"""`scripts/audit.py`: what counts as a problem, and that our packages can be built again byte by byte."""

from scripts.audit import build_problems, new_secrets, problems_in_report


def test_a_vulnerability_names_the_version_that_fixes_it() -> None:
    """And says so when there is none yet; a package without a finding is no problem."""
    report = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1", "3"]}]},
            {"name": "worse", "version": "3", "vulns": [{"id": "CVE-2", "fix_versions": []}]},
        ]
    }
    assert problems_in_report(report) == [
        "bad 2: CVE-1, fixed in 2.1, 3",
        "worse 3: CVE-2, fixed in no version yet",
    ]


def test_packages_without_an_answer_are_a_problem() -> None:
    """No answer of the registry must not read like a good one."""
    report = {
        "dependencies": [{"name": name, "skip_reason": "not found"} for name in ("b", "a")]
        + [{"name": "good", "version": "1", "vulns": []}]
    }
    assert problems_in_report(report) == ["2 packages could not be looked up: a, b"]


def test_only_known_secrets_are_harmless() -> None:
    """The same secret in another file, or another secret in the same file, is reported."""
    found = {
        file: [{"type": "Secret Keyword", "hashed_secret": digest, "line_number": 7}]
        for file, digest in (("a.py", "11"), ("b.py", "11"), ("c.py", "22"))
    }
    known = [("a.py", "Secret Keyword", "11"), ("c.py", "Secret Keyword", "11")]
    assert new_secrets(found, known) == ["b.py:7: Secret Keyword (11)", "c.py:7: Secret Keyword (22)"]


def test_the_same_sources_give_the_same_bytes() -> None:
    """Wheel, source archive and agent, built in two folders."""
    assert build_problems() == []
