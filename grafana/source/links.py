"""Links from a panel to another dashboard.

Invariant: a link keeps the data source, the cluster and the job, and encodes the values of a row.
"""

from .grid import PAGES, uid


def address(page, labels, fields):
    """The address of a dashboard without its time range, with labels of a row of a table as variables: those in `labels` by their name,
    those in `fields` by the name of the variable."""
    # A name may contain characters with a special meaning in a URL: +, &, #.
    chosen = {**{label: label for label in labels}, **fields}.items()
    values = "".join(f'&var-{variable}=${{__data.fields["{label}"]:percentencode}}' for variable, label in chosen)
    return f"/d/{uid(page)}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{job:queryparam}}{values}"


def detail(page, *labels, **fields):
    """A link from a row of a table to another dashboard, in the same time range; see `address`."""
    url = f"{address(page, labels, fields)}&${{__url_time_range}}"
    return [{"title": f"Open in the {PAGES[page]} dashboard", "url": url, "targetBlank": False}]


def page(name):
    """A link to another dashboard with the same variables."""
    kept = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${instance:queryparam}"
    return [{"title": f"Open the {PAGES[name]} dashboard", "url": f"/d/{uid(name)}?{kept}&${{__url_time_range}}", "targetBlank": False}]
