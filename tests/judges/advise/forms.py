"""The other formats of `vram-exporter advise`, compared with what its JSON must be."""

import csv
import html.parser
import io
import re
import time

import yaml

COLUMNS = ("WORKLOAD", "PEAK", "FIRST REACHED (UTC)", "NEAR PEAK", "JUDGED BY", "CURRENT → ADVISED", "FREED")
# Everything in ASCII and Latin-1 that is neither a letter nor a digit, and the sign for a character that is not shown.
DROPPED = {code: None for code in [*range(48), *range(58, 65), *range(91, 97), *range(123, 161), 0xFFFD]}
UNITS = ("WORKLOAD", "ADVISED", "BOARD", "MIG", "KAI FRACTION", "KAI, HAMI MiB", "TORCH", "XLA", "VLLM")


def size(amount):
    """Bytes for people."""
    unit = 0
    while amount >= 1000 and unit < 3:
        amount, unit = amount / 1024, unit + 1
    digits = 0 if unit == 0 or (amount == int(amount) and unit < 3) else 2 if amount < 100 else 1 if amount < 1000 else 0
    return f"{amount:.{digits}f} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def as_yaml(text, answer):
    found = yaml.safe_load(text)
    return [] if found == answer else ["yaml: differs from the JSON"]


def as_csv(text, answer):
    """Every number, in the order of the JSON; no name is a formula."""
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if len(rows) != len(answer["workloads"]):
        return [f"csv: {len(rows)} rows of {len(answer['workloads'])}"]
    problems = []
    for row, workload in zip(rows, answer["workloads"]):
        units = workload.get("units", {})
        want = {**workload, **{name: units.get(name) for name in ("kai_gpu_fraction", "torch_memory_fraction")}}
        want["gpu_memory_mib"] = units.get("kai_gpu_memory_mib")
        want |= {name: units.get(name, {}).get("name") for name in ("board", "mig_profile")}
        for column, value in row.items():
            if column in ("workload", "cluster"):
                plain = "".join(char if char.isprintable() else " " for char in want.get(column, ""))
                same = value in (plain, "'" + plain)
            elif isinstance(want.get(column), (int, float)):
                same = value not in ("", None) and float(value) == want[column]
            else:
                same = value == (want.get(column) or "")
            if not same:
                problems.append(f"csv: {workload['workload']!r}: {column} is {value!r}, not {want.get(column)!r}")
            if value and value.lstrip()[0] in "=+-@":
                problems.append(f"csv: {value!r} is a formula")
    return problems


class Page(html.parser.HTMLParser):
    """The cells of the tables, the text outside of them, and the tags."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.outside, self.cell = [], set(), "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.tags.update(name for name, _ in attrs if name.startswith("on"))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is None:
            self.outside += data
        else:
            self.cell += data


def as_html(text, answer):
    page = Page(text)
    problems = [f"html: contains {tag}" for tag in page.tags & {"script", "iframe", "img", "onclick", "onload"}]
    if len(page.tables) != 2:
        return [f"html: {len(page.tables)} tables"]
    return problems + tables("html", *page.tables, page.outside, answer)


def as_table(text, answer):
    lines = text.split("\n")
    found = []
    for headings in (COLUMNS, UNITS):
        [number] = [number for number, line in enumerate(lines) if re.split(r" {2,}", line) == list(headings)]
        starts = [lines[number].index(heading) for heading in headings] + [None]
        rows = []
        for line in lines[number:]:
            if not line:
                break
            rows.append([line[start:end].strip() for start, end in zip(starts, starts[1:])])
        found.append(rows)
    problems = ["table: a control character"] if any(not char.isprintable() for line in lines for char in line) else []
    return problems + tables("table", *found, text, answer)


def tables(form, advice, units, outside, answer):
    """The rows, those that free most first, and the lines about the fleet."""
    ordered = sorted(answer["workloads"], key=lambda workload: -workload["freed_bytes"])
    rows = [cells(workload) for workload in ordered]
    problems = list(compared(form, advice, COLUMNS, rows))
    rows = [unit_cells(workload) for workload in ordered if "units" in workload]
    problems += compared(form, units, UNITS, rows)
    fleet = answer["fleet"]
    said = [f"Could be given back in all: {size(fleet['freed_bytes'])}"]
    if fleet["gpus_now"]:
        said.append(f"at least {fleet['gpus_lower_bound']} GPUs, {fleet['gpus_first_fit']} with first fit; now they use {fleet['gpus_now']}")
    return problems + [f"{form}: no line {line!r}" for line in said if line not in outside]


def compared(form, found, headings, rows):
    """Each expected cell is a text, or a pattern. Names are compared without the characters that a form must not contain."""
    if found[0] != list(headings) or len(found) - 1 != len(rows):
        yield f"{form}: the headings {found[0]} and {len(found) - 1} rows, not {len(rows)}"
        return
    for have, want in zip(found[1:], rows):
        for cell, value, heading in zip(have, want, headings):
            if heading == "WORKLOAD":
                same = letters(value).startswith(letters(cell)) if form == "table" else letters(cell) == letters(value)
            else:
                same = re.fullmatch(value, cell) if isinstance(value, re.Pattern) else cell == value
            if not same:
                yield f"{form}: {want[0]!r}: {heading} is {cell!r}, not {value!r}"


def letters(name):
    """What every form shows of a name: its letters and digits, without escapes."""
    return re.sub(r"\\(u\{[0-9a-f]+\}|[nt])", "", name).translate(DROPPED)


def counted(number, name):
    return f"{number} {name}" + ("" if number == 1 else "s")


def cells(workload):
    name = (f"{workload['cluster']}: " if "cluster" in workload else "") + workload["workload"] + (" *" if workload.get("simulated") else "")
    advice, current = workload["advice_bytes"], size(workload["current_bytes"])
    if workload["current_source"] != "device":
        current += f" ({workload['current_source']})"
    keep = ", keep (margin not met)" if advice and advice > workload["current_bytes"] else ", keep"
    changed = "none: .+" if advice is None else re.escape(size(advice) + {"keep": keep, "lower": ", lower", "raise": ", RAISE"}[workload["action"]])
    failed = f", {workload['out_of_memory']} out of memory" if workload.get("out_of_memory") else ""
    seconds = workload["span_seconds"]
    length, unit = (3600, "h") if seconds < 48 * 3600 else (86400, "d")
    # Rounded down: the history is at least as long.
    span = f"{seconds // length} {unit}"
    return (
        name,
        size(workload["peak_bytes"]) + (" (needed)" if workload["basis"] == "allocator" else ""),
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(workload["peak_from"])),
        f"{workload['intervals_near_peak']} of {workload['intervals']}",
        f"{counted(workload['samples'], 'sample')}, {span}, {counted(workload['runs'], 'run')}{failed}",
        re.compile(re.escape(f"{current} → ") + changed),
        size(workload["freed_bytes"]) if workload["freed_bytes"] else "",
    )


def unit_cells(workload):
    units = workload["units"]

    def share(name, digits):
        return f"{units[name]:.{digits}f}" if name in units else "-"

    name = cells(workload)[0]
    return (name, size(workload["advice_bytes"]), units.get("board", {}).get("name", "-"), units.get("mig_profile", {}).get("name", "-"),
        share("kai_gpu_fraction", 2), str(units["kai_gpu_memory_mib"]), share("torch_memory_fraction", 4), share("xla_client_mem_fraction", 4),
        share("vllm_gpu_memory_utilization", 4))  # fmt: skip


FORMS = {"yaml": as_yaml, "csv": as_csv, "html": as_html, "table": as_table}
