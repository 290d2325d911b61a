"""Makes the tables of RESULTS.md and docs/fleet.md from the JSON files of measure.py.

    tables.py FOLDER [--machines 1000]

Invariant: an extrapolated figure stands beside the line that gave it: a fixed part and a part for each machine, by least squares over all
measured sizes.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

MIB = 1 << 20


def line(points):
    """(fixed part, part for each machine) of points (machines, value). With one size, the line goes through 0."""
    xs, ys = zip(*points)
    if len(set(xs)) == 1:
        return 0.0, statistics.mean(ys) / xs[0]
    slope, fixed = statistics.linear_regression(xs, ys)
    return fixed, slope


def at(points, machines):
    fixed, slope = line(points)
    return fixed + slope * machines


def table(header, rows):
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def read(folder, pattern):
    found = [json.loads(path.read_text()) for path in folder.glob(pattern)]
    return sorted(found, key=lambda one: one["machines"])


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 or abs(value) < 1e-6 else f"{value:.3g}"


def fitted(label, results, value, machines, unit=1):
    points = [(one["machines"], value(one) / unit) for one in results]
    fixed, slope = line(points)
    return [label, *(number(y) for _, y in points), f"{number(fixed)} + {number(slope)} n", number(fixed + slope * machines)]


def sent(folder):
    found = json.loads((folder / "sent.json").read_text())
    rows = []
    for name, kinds in found.items():
        for kind, label in zip(kinds, (name, f"{name}: dcgm-exporter's default families")):
            rate = [kind[key] * 1000 / 15 / 1e6 * 8 for key in ("bytes", "compressed")]
            sizes = [f"{kind[key] / 1000:.0f} kB" for key in ("bytes", "compressed")]
            rows.append([label, kind["series"], *sizes, *(f"{one:.0f} Mbit/s" for one in rate)])
    yield from table(["one scrape of a machine", "series", "plain", "gzip", "1000 machines every 15 s, plain", "with gzip"], rows)


def live(folder, machines):
    results = read(folder, "live-*.json")
    if not results:
        return
    head = ["Prometheus", *(f"{one['machines']} machines" for one in results), "line, n machines", f"{machines} machines"]
    rows = [
        fitted("scraped series", results, lambda one: one["without rules"]["series"], machines),
        fitted("recorded series", results, lambda one: one["with rules"]["series"] - one["without rules"]["series"], machines),
        fitted("samples/s", results, lambda one: one["without rules"]["samples_per_second"], machines),
        fitted("cores, without rules", results, lambda one: one["without rules"]["cores"], machines),
        fitted("cores, with rules", results, lambda one: one["with rules"]["cores"], machines),
        fitted("resident MiB, without rules", results, lambda one: one["without rules"]["resident"], machines, MIB),
        fitted("resident MiB, with rules", results, lambda one: one["with rules"]["resident"], machines, MIB),
    ]
    yield from table(head, rows)
    series = [((one["without rules"]["resident"] - one["without rules"]["empty"]) / one["without rules"]["series"]) for one in results]
    yield f"Resident memory for each series: {', '.join(f'{one / 1000:.1f} kB' for one in series)}."
    yield ""


def variants(folder):
    path = folder / "variants.json"
    if path.exists():
        found = json.loads(path.read_text())
        rows = []
        base = found["defaults"]["without rules"]
        for name, one in found.items():
            now = one["without rules"]
            grown = (now["series"] - one["first"]["without rules"]["series"]) / now["seconds"] * 3600
            rows.append([
                name, number(now["series"] / one["machines"]), f"{now['series'] / base['series']:.0%}", number(grown),
                f"{(now['resident'] - now['empty']) / MIB:.0f} MiB", f"{now['cores'] * 100:.1f} %",
            ])
        head = ["variant, 10 machines", "series per machine", "of the defaults", "new series an hour", "memory", "of a core"]
        yield from table(head, rows)


def rules(folder, machines):
    results = read(folder, "rules-*.json")
    if not results:
        return
    rows, shares = [], []
    for name, group in results[0]["rules"].items():
        points = [(one["machines"], one["rules"][name]["cpu"] * 1000) for one in results]
        fixed, slope = line(points)
        share = at(points, machines) / 1000 / group["interval"]
        shares.append(share)
        cells = [f"{y:.1f} ms" for _, y in points]
        fit = [f"{fixed:.2f} + {slope:.3f} n ms", f"{at(points, machines) / 1000:.2f} s", f"{share:.2%}"]
        rows.append([f"`{name}`", f"{group['interval']:.0f} s", *cells, *fit])
    rows.append(["all", "", *("" for _ in results), "", "", f"{sum(shares):.1%}"])
    head = ["group", "interval", *(f"{one['machines']} machines" for one in results), "line", f"{machines} machines", "of a core"]
    yield from table(head, rows)


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def opened_at(page, points, machines):
    """The cost of a page with this many machines, never below those measured. GPU shows one node, however many there are."""
    largest = max(cost for _, cost in points)
    return largest if page == "gpu" else max(largest, at(points, machines))


def kinds(results):
    """(span, variant) of the measurements of queries."""
    return sorted({(one["span"], one["variant"]) for one in results})


def queries(folder, machines):
    path = folder / "queries.json"
    if not path.exists():
        return
    results = json.loads(path.read_text())
    pages = list(dict.fromkeys(one["page"] for one in results[0]["queries"]))
    rows = []
    for span, variant in kinds(results):
        sizes = sorted((one for one in results if (one["span"], one["variant"]) == (span, variant)), key=lambda one: one["machines"])
        for page in pages:
            cells = {"sum": [], "p95": [], "closed": []}
            refused = 0
            for one in sizes:
                answered = [query for query in one["queries"] if query["page"] == page and "cpu" in query]
                costs = [query["cpu"] for query in answered if query["opened"]]
                cells["closed"].append((one["machines"], sum(query["cpu"] for query in answered if not query["opened"])))
                refused += sum("refused" in query for query in one["queries"] if query["page"] == page)
                cells["sum"].append((one["machines"], sum(costs)))
                cells["p95"].append((one["machines"], quantile(costs, 0.95)))
            fits = [f"{opened_at(page, cells[key], machines):.3g} s" for key in ("p95", "sum", "closed")]
            measured = ", ".join(f"{n}: {p:.3f} s / {s:.2f} s" for (n, p), (_, s) in zip(cells["p95"], cells["sum"]))
            rows.append([page, f"{span / 3600:.0f} h, {variant}", measured, *fits, refused or "-"])
    written = [one["blocks"] for one in results if one["blocks"]["samples"]]
    if written:
        size, samples = (sum(one[key] for one in written) for key in ("bytes", "samples"))
        yield f"Blocks on disk: {size / samples:.2f} bytes for each sample, of {samples / 1e6:.0f} million."
        yield ""
    measured = "machines: p95 of its queries / all of them"
    head = ["dashboard", "range", measured, f"{machines} machines: p95", "all", "collapsed rows", "refused"]
    yield from table(head, rows)


def slowest(folder, page, count=8):
    path = folder / "queries.json"
    results = json.loads(path.read_text()) if path.exists() else []
    for span, variant in kinds(results):
        last = max((one for one in results if (one["span"], one["variant"]) == (span, variant)), key=lambda one: one["machines"])
        panels = {}
        for query in last["queries"]:
            if query["page"] == page and query["opened"]:
                panels[query["panel"]] = panels.get(query["panel"], 0) + query.get("cpu", 0)
        rows = [[name, f"{cpu:.3f} s"] for name, cpu in sorted(panels.items(), key=lambda one: -one[1])[:count]]
        yield from table([f"{page}, {span / 3600:.0f} h, {last['machines']} machines, {variant}", "processor time"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--machines", type=int, default=1000)
    given = parser.parse_args()
    print(json.loads((given.folder / "environment.json").read_text()), end="\n\n")
    parts = [sent(given.folder), live(given.folder, given.machines), variants(given.folder), rules(given.folder, given.machines)]
    parts += [queries(given.folder, given.machines), slowest(given.folder, "fleet"), slowest(given.folder, "workloads")]
    for part in parts:
        print("\n".join(part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
