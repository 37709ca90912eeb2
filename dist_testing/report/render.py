"""Renders the templates of pages with jinja2: everything is escaped, and nothing leaves the page."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import ReportError
from dist_testing.report.words import clean, count_of, percent, plural, ranks_text, seconds, utc

if TYPE_CHECKING:
    import jinja2

_FOLDER = Path(__file__).parent / "templates"


def rendered(template: Path, **values: object) -> str:
    """Return a page.

    It has the style of all pages, and the script beside the template that has its name. Its content security policy
    allows these two by their digests and nothing else: no request leaves the page, whatever the results contain.
    """
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    script_file = template.with_suffix(".js")
    script = script_file.read_text(encoding="utf-8") if script_file.exists() else ""
    policy = f"default-src 'none'; style-src {_digest(style)}; "
    policy += f"script-src {_digest(script)}; " if script else ""
    page = fragment(
        template,
        **values,
        policy=f"{policy}base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
    )
    return f"{page}\n"


def fragment(template: Path, **values: object) -> str:
    """Return a part of a page."""
    return _environment(template.parent).get_template(template.name).render(**values)


def html_bytes(text: str) -> int:
    """Return how many bytes a text takes in a page, at most."""
    return len(html.escape(text).encode(errors="replace"))


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ReportError(
            "jinja2 is not installed.\n"
            "The page is made from a template of jinja2, and needs no other package.\n"
            "Run `pip install jinja2`; under Bazel add jinja2 to the hub of dist_testing.packages()."
        ) from error
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_cleaned,
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "count": count_of,
        "percent": percent,
        "plural": plural,
        "ranks": ranks_text,
        "seconds": seconds,
        "short": shorten,
        "utc": utc,
    }
    return environment


def _cleaned(value: Any) -> Any:
    # Most texts have nothing to clean. What the filter `safe` marks as HTML is a subclass of str.
    return clean(value) if type(value) is str and not (value.isascii() and value.isprintable()) else value


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
