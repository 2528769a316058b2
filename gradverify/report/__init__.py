"""Reports: a `Report` in, text out. These rooms see the model and the rules only, and print nothing."""

from typing import TYPE_CHECKING

from gradverify.on_demand import on_demand

if TYPE_CHECKING:
    from gradverify.report.block import render_failure
    from gradverify.report.concise import render_concise
    from gradverify.report.console import TextStyle, harmless
    from gradverify.report.explain import render_rule, render_rules_table
    from gradverify.report.github import render_github
    from gradverify.report.html import render_html
    from gradverify.report.json_v1 import render_json
    from gradverify.report.junit import render_junit
    from gradverify.report.lint import render_lint, render_lint_concise, render_lint_github
    from gradverify.report.lint_json import render_lint_json
    from gradverify.report.listing import ListedTarget, render_listing
    from gradverify.report.markdown import render_markdown
    from gradverify.report.mistakes import render_mistakes
    from gradverify.report.mutations import render_selftest
    from gradverify.report.sarif import render_sarif
    from gradverify.report.suggestion import render_suggestion
    from gradverify.report.text import render_scrolled, render_text, slowest_lines
else:
    __getattr__ = on_demand(
        __name__,
        {
            "block": "render_failure",
            "concise": "render_concise",
            "console": "TextStyle harmless",
            "explain": "render_rule render_rules_table",
            "github": "render_github",
            "html": "render_html",
            "json_v1": "render_json",
            "junit": "render_junit",
            "lint": "render_lint render_lint_concise render_lint_github",
            "lint_json": "render_lint_json",
            "listing": "ListedTarget render_listing",
            "markdown": "render_markdown",
            "mistakes": "render_mistakes",
            "mutations": "render_selftest",
            "sarif": "render_sarif",
            "suggestion": "render_suggestion",
            "text": "render_scrolled render_text slowest_lines",
        },
    )

__all__ = [
    "ListedTarget",
    "TextStyle",
    "harmless",
    "render_concise",
    "render_failure",
    "render_github",
    "render_html",
    "render_json",
    "render_junit",
    "render_lint",
    "render_lint_concise",
    "render_lint_github",
    "render_lint_json",
    "render_listing",
    "render_markdown",
    "render_mistakes",
    "render_rule",
    "render_rules_table",
    "render_sarif",
    "render_scrolled",
    "render_selftest",
    "render_suggestion",
    "render_text",
    "slowest_lines",
]
