"""The pages for people name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", *(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))]
FOLDERS = "managers|runtime|radix|constrained|lang|tests|examples|docs"


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w/.-]*)", (ROOT / page).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_architecture_page_names_files() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(set(re.findall(r"`[\w/]+\.py`", text))) > 40


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        links = [
            link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (ROOT / page).parent.joinpath(link).exists()
        ]
        assert links == [], page
