"""Hooks of mkdocs for tools/mkdocs.yml: bring pages that lie outside docs/ into the site, and lead links there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# by the path in the repository: the page of the site
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "docs": "index.md",
}
SHIPPED = {"hostfiles": "Inventories", "playbooks": "Playbooks", "examples": "Training scripts"}
LINK = re.compile(r"(\[[^][]*)?\]\((?![a-z]+:)([^)#\s]+)")
STYLE = """
.md-grid {max-width: 68rem}
.md-typeset table:not([class]) :is(td, th) {padding: .5em .8em; min-width: 0}
.md-typeset table:not([class]) {display: table; font-size: .68rem}
.md-typeset table:not([class]) td {overflow-wrap: anywhere}
.md-typeset table:not([class]) td:first-child {min-width: 7rem}
.md-typeset img {width: 100%}
@media (max-width: 44em) {.md-typeset table:not([class]) {display: block; overflow-x: auto}}
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        if (ROOT / name).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    files.append(File.generated(config, "examples.md", content=examples()))
    files.append(File.generated(config, "site.css", content=STYLE))
    return files


def examples() -> str:
    """Returns a page with the files that `fleet examples` lists."""
    parts = ["# Examples\n\n`fleet examples --to .` writes these files into the current folder.\n"]
    for folder, title in SHIPPED.items():
        parts.append(f"## {title}\n")
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file():
                kind = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "bash"}.get(path.suffix, "text")
                parts.append(f"### {folder}/{path.name}\n\n```{kind}\n{path.read_text('utf-8')}```\n")
    return "\n".join(parts)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = Path(page.file.abs_src_path or config.docs_dir).parent

    def led(link: re.Match[str]) -> str:
        path = Path(os.path.relpath(source / link[2], ROOT))
        text = link[1] or ""
        if text.endswith(".md"):  # a page is called by its title
            text = "[" + (ROOT / path).read_text("utf-8").partition("\n")[0].lstrip("# ")
        name = path.as_posix()
        if path.parts[0] in SHIPPED:
            anchor = f"#{re.sub(r'[^a-z0-9_-]', '', name.lower())}" if len(path.parts) > 1 else ""
            return f"{text}](examples.md{anchor}"
        return f"{text}]({PAGES.get(name, name.removeprefix('docs/'))}"

    return LINK.sub(led, markdown)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Returns the page without the backslashes that code in a table's cell needs before its bars."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)
