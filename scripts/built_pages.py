"""The pages that are built for the site and not tracked: rules, commands, API, practices.

A page that is tracked links to the file that such a page is built from, so that the link works on a code host
too. On the site, it leads to the page.
"""

import sys
from pathlib import Path

if str(Path(__file__).parent) not in sys.path:  # mkdocs and pytest import this file from elsewhere
    sys.path.append(str(Path(__file__).parent))

import api_page
import commands_page
import practices_page
import rules_page


def build_pages() -> dict[str, tuple[str, str]]:
    """Return every built page: its path on the site, the file that it is built from, and its text."""
    return {
        name: page
        for builder in (commands_page, rules_page, api_page, practices_page)
        for name, page in builder.build_pages().items()
    }
