"""Is a machine of the fleet the recorded one with other identities? Compares two texts line by line.

Invariant: identities may differ only one to one; everything else, the order included, must be the same.
"""

from decimal import Decimal

from template import TIME, labels_of, lines_of

# Labels that name a machine, or something that lives on one machine only.
IDENTITIES = {
    "uuid", "UUID", "mig_uuid", "pid", "pod", "pod_uid", "container_id", "workload", "slurm_job", "Hostname", "hostname",
}  # fmt: skip
# The slots of a list are numbered by gpu, so these need no identity: gpu, gpu_instance, pci_bus_id.


def parsed(text):
    return [(line, sample and (sample[0], labels_of(sample[1]), sample[2])) for line, sample in lines_of(text)]


def differences(recorded, served, shift=0):
    """Everything in `served` that is not as recorded, with times moved by `shift` seconds."""
    before, after = parsed(recorded), parsed(served)
    if len(before) != len(after):
        yield f"{len(after)} lines, not {len(before)}"
    forth, back = {}, {}
    for (line, old), (other, new) in zip(before, after):
        if not old or not new:
            if line != other:
                yield f"{other!r}, not {line!r}"
            continue
        if old[0] != new[0] or [name for name, _ in old[1]] != [name for name, _ in new[1]]:
            yield f"{other!r}, not the series of {line!r}"
            continue
        moved = Decimal(str(shift)) if TIME.search(old[0]) else 0
        if abs(Decimal(old[2]) + moved - Decimal(new[2])) > (Decimal("0.0015") if moved else 0):
            yield f"{other!r}, not the value of {line!r}"
        for (name, value), (_, text) in zip(old[1], new[1]):
            if name not in IDENTITIES:
                if value != text:
                    yield f"{name}={text!r}, not {value!r}: {other!r}"
            elif forth.setdefault((name, value), text) != text:
                yield f"two values of {name} for {value!r}: {text!r} and {forth[name, value]!r}"
            elif back.setdefault((name, text), value) != value:
                yield f"one value of {name}, {text!r}, for {value!r} and {back[name, text]!r}"


def own_names(text):
    """Identities of which no two machines may have the same: GPUs, MIG devices and pods' uids."""
    return {
        (name.lower(), value)
        for _, sample in parsed(text)
        if sample
        for name, value in sample[1]
        if name in {"uuid", "UUID", "mig_uuid", "pod_uid", "container_id"}
    }
