"""The queries of the dashboards and of the rules, as they are sent for the whole fleet.

Invariant: nothing is left out; each panel, hidden list and rule yields its queries exactly as shipped, with "All" selected.
"""

import dataclasses

import engines

import cost
import dashboards
import week

SCRAPE = 15


@dataclasses.dataclass(frozen=True)
class Query:
    page: str
    panel: str
    expression: str
    span: int
    # None: an instant query at the end of the span.
    step: int | None = None
    # Whether it runs when the page is opened: not if its row is collapsed.
    opened: bool = True

    def ask(self, api, end):
        """The result at `end` in seconds; ranges are aligned to their step, as Grafana does."""
        if self.step is None:
            return api.ask("query", query=self.expression, time=end)["result"]
        start, stop = (end - self.span) // self.step * self.step, end // self.step * self.step
        return api.ask("query_range", query=self.expression, start=start, end=stop, step=self.step)["result"]


def step_of(panel, span):
    least = int(engines.seconds(panel.get("interval") or f"{SCRAPE}s"))
    return max(least, week.rounded(span * week.COLUMNS / week.PIXELS / panel["gridPos"]["w"]))


def lists_at(api, end):
    """For of_dashboards: what the hidden variables of a page list, such as the workloads with the highest peaks, in a server at `end`."""
    return lambda dashboard, span, chosen: cost.lists(dashboard, api, end, span, SCRAPE, chosen)


def of_dashboards(span, pages=None, lists=lambda *_: {}, first_node=None, **chosen):
    """Every query of the dashboards over `span` seconds. `chosen` sets variables; the others select everything, unless `lists` finds the
    values of the hidden ones. The page GPU shows `first_node` if it is given, as when it is opened."""
    for name, dashboard in dashboards.read().items():
        page = name.removesuffix(".json")
        if pages is not None and page not in pages:
            continue
        selected = chosen | ({"instance": first_node} if first_node and page == "gpu" else {})
        selected |= lists(dashboard, span, selected)
        for variable in filter(dashboards.listed, dashboards.variables(dashboard)):
            text = variable["query"]["query"].removeprefix("query_result(")[:-1]
            yield Query(page, f"variable {variable['name']}", week.filled(text, dashboard, span, SCRAPE, **selected), span)
        for panel in dashboards.panels(dashboard):
            for target in panel["targets"]:
                step = step_of(panel, span)
                interval = f"{max(step + SCRAPE, 4 * SCRAPE)}s"
                text = week.filled(target["expr"], dashboard, span, step, **{"__rate_interval": interval} | selected)
                yield Query(page, panel["title"], text, span, step if target["range"] else None, panel in dashboard["panels"])


def of_rules():
    """(group, Query) of every rule, recording rules first: the others read their results."""
    found = [(group, rule) for group in engines.groups() for rule in group["rules"]]
    for group, rule in sorted(found, key=lambda one: "alert" in one[1]):
        yield group, Query(group["name"], rule.get("record") or rule["alert"], rule["expr"], 0)
