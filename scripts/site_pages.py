"""Hooks of mkdocs: what the site needs and plain Markdown files do not.

Owns the built pages in the menu, links that leave docs/ (the file becomes a page of the site), and lists
as code hosts read them. What pages say is in docs/.
"""

import logging
import os
import re
import sys
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from markdown import Markdown
from markdown.blockprocessors import build_block_parser
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # mkdocs imports this file alone
from scripts.built_pages import build_pages  # noqa: E402

FOLDERS = {"commands.md": "All commands", "rules.md": "All rules", "api.md": "All names"}
"""Pages of the menu that have a folder of the same name beside them: its pages come under them."""
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
LOADED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
LOG = logging.getLogger("mkdocs.hooks.site_pages")
FENCE = "~" * 8
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".ipynb": "json"}


class HostLists(Extension):
    """Lists as on code hosts: two blanks put something inside an item, and the first number may be 0."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  the name is Markdown's
        """Set both, and make the readers of blocks anew: they have taken the depth over already."""
        md.tab_length = 2
        md.lazy_ol = False
        md.parser.blockprocessors = build_block_parser(md).blockprocessors


def _family(page: Path) -> str:
    return page.stem.partition("-")[0].rstrip("0123456789")


@cache
def _built() -> dict[str, tuple[str, str]]:
    return build_pages()


def _under(index: str) -> list[Any]:
    """Return the menu under a page: the built pages of its folder, rules by family."""
    folder = index.removesuffix(".md") + "/"
    items = [name for name in _built() if name.startswith(folder)]
    head = {FOLDERS[index]: index}
    if index != "rules.md":
        return [head, *items]
    families: dict[str, list[Any]] = {}
    for item in items:
        families.setdefault(_family(Path(item)), []).append(item)
    return [head, *({name: members} for name, members in families.items())]


def _with_folders(nav: list[Any]) -> list[Any]:
    full: list[Any] = []
    for entry in nav:
        ((title, value),) = entry.items()
        if isinstance(value, list):
            full.append({title: _with_folders(value)})
        else:
            full.append({title: _under(value) if value in FOLDERS else value})
    return full


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the menu, and read lists as code hosts do."""
    config.nav = _with_folders(config.nav or [])
    config.markdown_extensions.insert(0, HostLists())  # type: ignore[arg-type]
    return config


def _home(uri: str) -> PurePosixPath:
    """Return where in the repository a page of the site comes from."""
    return PurePosixPath(uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}")


def _target(page: str, path: str) -> str | None:
    """Return the site's page for a link that leaves docs/, None for any other link."""
    found = PurePosixPath(os.path.normpath(_home(page).parent / path))
    if not (ROOT / found).is_file():
        return None
    if found.parts[0] == "docs":
        return None if not page.startswith("project/") else str(found.relative_to("docs"))
    built = {source: name for name, (source, _) in _built().items()}
    if str(found) in built and page != built[str(found)]:
        return built[str(found)]
    if str(found) in PROJECT:
        return f"project/{found}"
    return f"source/{found}.md"


def relinked(page: str, text: str) -> str:
    """Return a page's text with links that leave docs/ pointed to the site's pages."""

    def mend(link: re.Match[str]) -> str:
        target = _target(page, link["path"])
        if target is None:
            return link[0]
        return os.path.relpath(target, PurePosixPath(page).parent) + (link["anchor"] or "")

    return LINK.sub(mend, text)


def _source_page(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    head = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
    return f"{head}# `{path}`\n\n{FENCE}{language}\n{text}\n{FENCE}\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the built pages, the project's own, and a page for every file that a page links to."""
    for name, (_, text) in _built().items():
        files.append(File.generated(config, name, content=text))
    for name in PROJECT:
        if (ROOT / name).exists():
            text = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, f"project/{name}", content=text))
    for file in list(files.documentation_pages()):
        for link in LINK.finditer(file.content_string):
            target = _target(file.src_uri, link["path"])
            if target and target.startswith("source/") and target not in files.src_uris:
                path = target.removeprefix("source/").removesuffix(".md")
                files.append(File.generated(config, target, content=_source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links that leave docs/ to the pages made of those files."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    return relinked(page.file.src_uri, markdown)


def on_post_page(output: str, page: Page, **_: Any) -> None:
    """Warn of what a browser would fetch from elsewhere: readers are nobody else's business."""
    for tag in LOADED.findall(output):
        LOG.warning("%s loads something from elsewhere: %s", page.file.src_uri, tag)
