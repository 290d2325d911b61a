"""Links from a panel to another dashboard.

Invariant: a link keeps the data source, the cluster and the job, and encodes the values of a row.
"""

from .grid import PAGES, uid


SAME_TIME = "&${__url_time_range}"


def to(title, url, new_tab=False):
    return [{"title": title, "url": url, "targetBlank": new_tab}]


def address(page, labels=(), fields=()):
    """The address of a dashboard without its time range, with labels of a row of a table as variables: those in `labels` by their name,
    those in `fields` by the name of the variable."""
    # A name may contain characters with a special meaning in a URL: +, &, #.
    chosen = {**{label: label for label in labels}, **dict(fields)}.items()
    values = "".join(f'&var-{variable}=${{__data.fields["{label}"]:percentencode}}' for variable, label in chosen)
    return f"/d/{uid(page)}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{job:queryparam}}{values}"


def detail(page, *labels, **fields):
    """A link from a row of a table to another dashboard, in the same time range; see `address`."""
    return to(f"Open in the {PAGES[page]} dashboard", address(page, labels, fields) + SAME_TIME)


def page(name):
    """A link to another dashboard with the same variables."""
    return to(f"Open the {PAGES[name]} dashboard", address(name) + "&${instance:queryparam}" + SAME_TIME)
