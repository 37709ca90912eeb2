"""The pages of the site: places, links, order, and nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from pages import fetched, navigation, page_text, places

REPOSITORY = "https://host/OWNER/project"


def _texts(root: Path, files: dict[str, str]) -> dict[str, str]:
    """Write files into a repository. Return the text of each page of the site, by its place."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    where = places(files)
    return {place: page_text(root, page, where, REPOSITORY) for page, place in where.items()}


def test_links_between_pages_follow_the_pages_to_their_places(tmp_path: Path) -> None:
    """If this fails, a link that is right in the repository leads nowhere on the site."""
    files = {
        "README.md": "[a](docs/a.md#top) [all](docs/README.md)",
        "docs/README.md": "[a](a.md) [start](../README.md)",
        "docs/a.md": "[all](README.md) [b](api/b.md) [here](#top)",
        "docs/api/b.md": "[a](../a.md) [all](../README.md#x)",
    }
    assert _texts(tmp_path, files) == {
        "index.md": "[a](a.md#top) [all](contents.md)",
        "contents.md": "[a](a.md) [start](index.md)",
        "a.md": "[all](contents.md) [b](api/b.md) [here](#top)",
        "api/b.md": "[a](../a.md) [all](../contents.md#x)",
    }


def test_links_to_other_files_lead_to_the_repository(tmp_path: Path) -> None:
    """If this fails, the build refuses a correct link, or hides a broken one."""
    page = "[c](../CHANGES.md#new) [tool](../tools/x) [data](x.json) [gone](../gone.md) [host](https://host/a.md)"
    files = {"docs/a.md": page, "docs/x.json": "", "CHANGES.md": "", "tools/x/x.py": ""}
    (text,) = _texts(tmp_path, files).values()
    assert text.split() == [
        f"[c]({REPOSITORY}/blob/main/CHANGES.md#new)",
        f"[tool]({REPOSITORY}/tree/main/tools/x)",
        f"[data]({REPOSITORY}/blob/main/docs/x.json)",
        "[gone](../gone.md)",
        "[host](https://host/a.md)",
    ]


def test_code_is_left_as_it_is(tmp_path: Path) -> None:
    """If this fails, readers copy code that differs from the page in the repository."""
    code = "`[a](../a.md)`\n\n```\n[a](../a.md)\n```\n\n1. x\n\n    ```\n    [a](../a.md)\n    ```\n"
    files = {"docs/b.md": code + "[`a`](../a.md)", "a.md": ""}
    assert _texts(tmp_path, files)["b.md"] == code + f"[`a`]({REPOSITORY}/blob/main/a.md)"


def test_the_contents_give_the_groups_and_their_order() -> None:
    """If this fails, the navigation of the site differs from the page that people maintain."""
    contents = "# All\n\n## Start\n\n| [first steps](b.md), [API](api/a.md) | How? |\n\n## More\n\nSee [a](a.md).\n"
    assert navigation(contents) == [
        {"Overview": "index.md"},
        {"Contents": "contents.md"},
        {"Start": [{"First steps": "b.md"}, {"API": "api/a.md"}]},
        {"More": [{"A": "a.md"}]},
    ]


def test_what_a_page_fetches_from_another_host_is_found(tmp_path: Path) -> None:
    """If this fails, a reader's browser contacts others, and the site needs a network."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.html").write_text('<link rel="stylesheet" href="https://fonts.host/x">', encoding="utf-8")
    (tmp_path / "c.html").write_text("<script src=//cdn.host/y.js></script>", encoding="utf-8")
    (tmp_path / "d.html").write_text('<a href="https://host"><img src="a.png"><script src="a.js">', encoding="utf-8")
    assert list(fetched(tmp_path)) == ["a/b.html fetches https://fonts.host/x", "c.html fetches //cdn.host/y.js"]
