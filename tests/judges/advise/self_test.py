"""Shows that the check can fail: it notices every wrong number, and its own arithmetic agrees with small examples."""

import copy

import forms
from backfill import Run, Series
from packing import first_fit, lower_bound
from truth import highest, sampled

GIB = 1 << 30


def leaves(value, path=()):
    """The path of every value that is not a dict or a list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path
    else:
        for key, inner in items:
            yield from leaves(inner, (*path, key))


def changed(answer, path):
    """The answer with another value at the path."""
    answer = copy.deepcopy(answer)
    *way, last = path
    inner = answer
    for key in way:
        inner = inner[key]
    value = inner[last]
    inner[last] = not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else f"{value}x"
    return answer


def self_test(history, differences, case_problems):
    problems = []

    def expect(name, holds):
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
        if not holds:
            problems.append(name)

    answer = history.truth()
    expect(f"{len(history.cases)} cases hold for what the samples say", report(case_problems(history, answer)))
    expect("an answer equals itself", not list(differences(copy.deepcopy(answer), answer)))
    small = {**answer, "workloads": answer["workloads"][:3] + answer["workloads"][-3:]}
    paths = list(leaves(small))
    expect(f"{len(paths)} wrong values", all(any(differences(changed(small, path), small)) for path in paths))
    gone = {**small, "workloads": small["workloads"][1:]}
    expect("a missing workload, one too many, and another order", all(any(differences(found, want)) for found, want in (
        (gone, small), (small, gone), ({**small, "workloads": small["workloads"][::-1]}, small))))  # fmt: skip
    without = copy.deepcopy(small)
    del without["workloads"][0]["samples"]
    expect("a missing and an additional field", any(differences(without, small)) and any(differences(small, without)))
    named = next(name for name, _, expected in history.cases if "peak_bytes" in expected)
    wrong = {**answer, "workloads": [{**one, "peak_bytes": one["peak_bytes"] + 1} for one in answer["workloads"]]}
    expect("a wrong peak of a case", any(problem.startswith(named) for problem in case_problems(history, wrong)))
    expect("a workload of a case that is missing", any(case_problems(history, {**answer, "workloads": []})))

    of_forms(expect, small)
    # Items of 6, 5, 4 and 3 need two GPUs of 10: 6 + 4 and 5 + 3; the two called a are apart.
    items = [(6, "a", 0), (5, "b", 1), (4, "c", 2), (3, "d", 3)]
    expect("packing", (first_fit(items, 10), lower_bound(items, 10)) == (2, 2))
    items = [(1, "a", 0), (1, "a", 1), (1, "a", 2)]
    expect("packing of one workload on three GPUs", (first_fit(items, 10), lower_bound(items, 10)) == (3, 3))
    items = [(6, "a", 0), (6, "b", 1), (6, "c", 2)]
    expect("packing that wastes", (first_fit(items, 10), lower_bound(items, 10)) == (3, 2))
    series = Series("x", {}, 100, [Run(0, 1, 5), Run(3, 3, 7)])
    expect("samples", list(sampled(series, 0, 280)) == [(100, 5), (160, 5), (280, 7)])
    expect("samples at the ends of a range", list(sampled(series, 100, 279)) == [(160, 5)] and highest([series], 160, 280) == 7)
    return 1 if problems else 0


def report(problems):
    problems = list(problems)
    for problem in problems:
        print(f"     {problem}")
    return not problems


def of_forms(expect, answer):
    """A page as the program prints it, and the same one with a wrong cell or a script."""
    ordered = sorted(answer["workloads"], key=lambda workload: -workload["freed_bytes"])
    rows = [[cell if isinstance(cell, str) else cell.pattern.replace("\\", "").replace(".+", "why") for cell in forms.cells(one)] for one in ordered]
    units = [list(forms.unit_cells(one)) for one in ordered if "units" in one]
    fleet = answer["fleet"]
    said = f"Could be given back in all: {forms.size(fleet['freed_bytes'])}. They need at least {fleet['gpus_lower_bound']} GPUs, "
    said += f"{fleet['gpus_first_fit']} with first fit; now they use {fleet['gpus_now']}"

    def page(rows, units, more=""):
        parts = [[list(forms.COLUMNS), *rows], [list(forms.UNITS), *units]]
        made = ["<table>" + "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in part) + "</table>" for part in parts]
        return "".join(made) + said + more

    expect("a page equals itself", report(forms.as_html(page(rows, units), answer)))
    wrong = [[*rows[0][:-1], "1.00 GiB"], *rows[1:]]
    expect("a wrong cell", any(forms.as_html(page(wrong, units), answer)))
    expect("a missing row", any(forms.as_html(page(rows, units[1:]), answer)))
    expect("a script", any(forms.as_html(page(rows, units, "<script>"), answer)))
    expect("wrong YAML", any(forms.as_yaml("version: 1\n", answer)))
    formula = "workload\r\n" + "=1+1\r\n" * len(answer["workloads"])
    expect("a formula", any("formula" in problem for problem in forms.as_csv(formula, answer)))


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
