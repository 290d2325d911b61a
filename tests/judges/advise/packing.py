"""How many GPUs the current runs need: a lower bound, and first fit of the items by size."""

from collections import Counter, defaultdict


def first_fit(items, size):
    """How many GPUs of this size hold the items (bytes, name, order); two items of one name are on different GPUs."""
    gpus = []
    for amount, name, _ in sorted(items, key=lambda item: (-item[0], item[2])):
        place = next((gpu for gpu in gpus if gpu["free"] >= amount and name not in gpu["names"]), None)
        if place is None:
            place = {"free": size, "names": set()}
            gpus.append(place)
        place["free"] -= amount
        place["names"].add(name)
    return len(gpus)


def lower_bound(items, size):
    whole = -(-sum(amount for amount, *_ in items) // size)
    return max(whole, max(Counter(name for _, name, _ in items).values()))


def boards(devices, current):
    """The part `fleet` of the answer, without what would be freed. `current` are (run, advice in bytes or None)."""
    smallest = {}
    for device in devices:
        if not device.profile:
            key = device.parts[0].target.get("cluster") or "", device.board.name
            smallest[key] = min(smallest.get(key, device.allocatable), device.allocatable)
    on = defaultdict(list)
    for run, advice in current:
        on[run.cluster or "", run.device.board.name].append((run, advice))
    rows = []
    for (cluster, board), runs in sorted(on.items()):
        size = smallest[cluster, board]
        # They fit where they are now.
        used = len({run.device.labels["uuid"] for run, _ in runs})
        items = []
        for run, advice in runs:
            amount = run.peak if advice is None else advice
            items.append((min(amount, size), (run.work.kind, run.work.name), (run.work.name.encode(), *run.device.key)))
        rows.append(
            {
                **({"cluster": cluster} if cluster else {}),
                "board": board,
                "allocatable_bytes": size,
                "gpus_now": used,
                "runs_now": len(runs),
                "runs_without_advice": sum(advice is None for _, advice in runs),
                "gpus_lower_bound": min(used, lower_bound(items, size)),
                "gpus_first_fit": min(used, first_fit(items, size)),
            }
        )
    sums = {name: sum(row[name] for row in rows) for name in ("gpus_now", "gpus_first_fit", "gpus_lower_bound")}
    return {**sums, "boards": rows}
