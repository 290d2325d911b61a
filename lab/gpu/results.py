"""The results of the checks: for each, one line with its figure, its goal and whether it was met."""

import json
import os


class Results:
    def __init__(self):
        self.lines = []

    def check(self, name, figure, goal, ok):
        """A figure with a goal. If `ok` is false, the run fails."""
        self.add(name, figure, goal, bool(ok))

    def note(self, name, figure):
        """A figure without a goal. It is reported and does not affect the result."""
        self.add(name, figure, None, None)

    def add(self, name, figure, goal, ok):
        self.lines.append({"check": name, "figure": figure, "goal": goal, "ok": ok})
        verdict = {True: "ok  ", False: "FAIL", None: "    "}[ok]
        print(f"{verdict} {name}: {figure}" + (f" (goal: {goal})" if goal else ""), flush=True)

    def failed(self):
        return [line for line in self.lines if line["ok"] is False]

    def write(self, folder, about):
        """results.json and results.md in `folder`."""
        with open(os.path.join(folder, "results.json"), "w") as out:
            json.dump({**about, "results": self.lines}, out, indent=1)
            out.write("\n")
        with open(os.path.join(folder, "results.md"), "w") as out:
            out.write(self.markdown(about))

    def markdown(self, about):
        rows = [", ".join(f"{key}: {value}" for key, value in about.items()), ""]
        rows += ["| check | figure | goal | met |", "|---|---|---|---|"]
        for line in self.lines:
            met = {True: "yes", False: "**no**", None: ""}[line["ok"]]
            cells = (line["check"], line["figure"], line["goal"] or "", met)
            rows.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(rows) + "\n"


def percentile(values, share):
    """The value at `share` (0 to 1) of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
