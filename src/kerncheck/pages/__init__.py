"""A report that a person looks at: one page of HTML that needs no network, or Markdown for a pull request.

Everything on it comes from a report (`--format json`) or a trace; nothing is judged here. Pages of HTML need the extra
``report`` (jinja2, matplotlib), which is imported only when one is made.
"""
