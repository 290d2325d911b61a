"""One machine of the fleet: its identities, and what happens to it over time.

Everything is a function of the seed, the machine's number and the seconds since the start, so two runs see the same fleet. Number 0 has the
recorded identities. Invariant: two different values of an identity stay different, and all labels that name one thing change together.
"""

import dataclasses
import hashlib
import re
import uuid
from decimal import Decimal

# memory.peak-window and process.linger of the exporter: how long the peaks of what has ended stay.
LINGER = 360
PIDS = 4_000_000
DRIVER = re.compile(r"(\d+\.)(\d+)(\.\d+)$")
# What happens to a machine, in turn.
EVENTS = ("unreachable", "removed", "driver", "recut")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much happens: mean lifetimes in seconds of pods and of processes in them, and the time from one event of a machine to the next
    and its duration. 0: never."""

    seed: int = 1
    pods: float = 0
    processes: float = 0
    events: float = 0
    lasting: float = 120


def number(*what):
    return int.from_bytes(hashlib.blake2b("\0".join(map(str, what)).encode(), digest_size=8).digest(), "big")


def share(*what):
    """From 0 to 1."""
    return number(*what) / 2**64


def digits(length, *what):
    return hashlib.blake2b("\0".join(map(str, what)).encode(), digest_size=32).hexdigest()[:length]


def owner_of(labels):
    """What lives and ends together: a pod or, outside of Kubernetes, a workload."""
    if "pod" in labels:
        return f"{labels.get('namespace')}/{labels['pod']}"
    return labels.get("workload")


class Owners:
    """Which owner and pid belong to each set of labels of a template."""

    def __init__(self, template):
        known = {}
        sets = [dict(labels) for labels in template.labels]
        for labels in sets:
            if "pid" in labels and owner_of(labels):
                known[labels["pid"]] = owner_of(labels)
        self.pids = {pid: at for at, pid in enumerate(sorted({s["pid"] for s in sets if "pid" in s}))}
        self.of = []
        for labels in sets:
            pid = labels.get("pid")
            self.of.append((owner_of(labels) or known.get(pid), pid))


@dataclasses.dataclass(frozen=True)
class State:
    """The machine between two changes."""

    condition: str
    # Seconds since the exporter started, which is when the counters were 0.
    running: float
    boots: int
    drivers: int
    recuts: int


class Machine:
    def __init__(self, at, template, plan, owners):
        self.at, self.template, self.plan, self.owners = at, template, plan, owners
        self.rendered = []
        # Kept, because they are asked for at each scrape: random lifetimes, and rewritten labels by index and generation.
        self.lifetimes, self.rewritten, self.era = {}, {}, None
        self.named = sorted({o for o, _ in owners.of if o}), sorted({p for _, p in owners.of if p})

    # What happens.

    def state(self, t):
        plan = self.plan
        if not plan.events:
            return State("up", t, 0, 0, 0)
        # The first event does not begin before the start.
        late = share(plan.seed, self.at, "event") * (plan.events - plan.lasting)
        turn, position = divmod(t + late, plan.events)
        first = number(plan.seed, self.at, "kind") % len(EVENTS)
        done = [EVENTS[(first + past) % len(EVENTS)] for past in range(int(turn))]
        now = EVENTS[(first + int(turn)) % len(EVENTS)] if position >= plan.events - plan.lasting else "up"
        running = position if turn else t
        if now == "recut":
            # The devices are new at once.
            done.append(now)
            now = "up"
        boots = done.count("unreachable") + done.count("removed")
        return State(now, running, boots, done.count("driver"), done.count("recut"))

    def generations(self, name, life, t):
        """The number of the current generation of an owner or process, when it began, and the numbers of those that ended recently."""
        if not life:
            return 0, None, ()
        if name not in self.lifetimes:
            life *= 0.5 + share(self.plan.seed, self.at, name, "life")
            self.lifetimes[name] = life, share(self.plan.seed, self.at, name, "phase") * life
        life, late = self.lifetimes[name]
        current = int((t + late) // life)
        recent = []
        past = current - 1
        while past >= 0 and t - ((past + 1) * life - late) < LINGER:
            recent.append(past)
            past -= 1
        return current, (current * life - late if current else None), tuple(recent)

    # Identities.

    def word(self, kind, value, generation):
        return (self.plan.seed, self.at, kind, value, generation)

    def rewrite(self, labels, generation, process, state):
        """The text of the labels: of `generation` of their owner, and of `process`, the generation of the pid."""
        new = dict(labels)
        found = dict(labels)
        same = self.at == 0
        for label in ("uuid", "UUID"):
            if label in new and not same:
                new[label] = "GPU-" + str(uuid.UUID(digits(32, *self.word("gpu", found[label], 0))))
        if "mig_uuid" in new and not (same and not state.recuts):
            new["mig_uuid"] = "MIG-" + str(uuid.UUID(digits(32, *self.word("mig", found["mig_uuid"], state.recuts))))
        if "driver_version" in new or "DCGM_FI_DRIVER_VERSION" in new:
            self.upgrade(new, found, state.drivers)
        for label in ("Hostname", "hostname"):
            if label in new and not same:
                new[label] = f"node-{self.at:05}"
        if "pid" in new and not (same and not process):
            count = len(self.owners.pids)
            start = number(self.plan.seed, self.at, "pids") % (PIDS // 2)
            new["pid"] = str(1 + (start + self.owners.pids[found["pid"]] + process * count) % PIDS)
        if not (same and not generation):
            self.rename(new, found, generation)
        return "{" + ",".join(f'{name}="{new[name]}"' for name, _ in labels) + "}"

    @staticmethod
    def upgrade(new, found, drivers):
        for label in ("driver_version", "nvml_version", "DCGM_FI_DRIVER_VERSION"):
            if label in new and drivers:
                new[label] = DRIVER.sub(lambda m: f"{m[1]}{int(m[2]) + drivers}{m[3]}", found[label])

    def rename(self, new, found, generation):
        """A pod, a container and a Slurm job get other names; units and users keep theirs."""
        if "pod" in found:
            ending = digits(5, *self.word("pod", f"{found.get('namespace')}/{found['pod']}", generation))
            new["pod"] = f"{found['pod']}-{ending}"
        if "pod_uid" in found:
            new["pod_uid"] = str(uuid.UUID(digits(32, *self.word("pod_uid", found["pod_uid"], generation))))
        if "container_id" in found:
            new["container_id"] = digits(64, *self.word("container", found["container_id"], generation))
        workload = found.get("workload", "")
        if found.get("kind") == "kubernetes" and workload == f"{found.get('namespace')}/{found.get('pod')}/{found.get('container')}":
            new["workload"] = f"{found['namespace']}/{new['pod']}/{found['container']}"
        elif workload.startswith("container:"):
            new["workload"] = "container:" + digits(12, *self.word("workload", workload, generation))
        elif workload.startswith("slurm:"):
            job = str(10_000 + number(*self.word("job", workload, generation)) % 10**9)
            new["workload"] = f"slurm:{job}"
            if "slurm_job" in found:
                new["slurm_job"] = job

    # The text.

    def lives(self, t):
        """For each owner and each pid: its generation, when it began, and those that ended recently."""
        owners = {owner: self.generations(owner, self.plan.pods, t) for owner in self.named[0]}
        pids = {pid: self.generations(f"pid {pid}", self.plan.processes, t) for pid in self.named[1]}
        return owners | {None: (0, None, ())}, pids | {None: (0, None, ())}

    def labels(self, at, life, process, state):
        """The text of a set of labels in these generations of its owner and its process."""
        era = (state.boots, state.drivers, state.recuts)
        if era != self.era:
            self.era = era
            self.rewritten.clear()
        key = (at, life, process)
        found = self.rewritten.get(key)
        if found is None:
            if len(self.rewritten) > 8 * len(self.template.labels):
                self.rewritten.clear()
            owner = life + 1_000 * state.boots
            found = self.rewrite(self.template.labels[at], owner, owner * 10_000 + process, state)
            self.rewritten[key] = found
        return found

    def prepare(self, t, state):
        """The texts of all sets of labels now, and whether something has ended recently."""
        owners, pids = self.lives(t)
        self.rendered = [
            self.labels(at, owners[owner][0], pids[pid][0], state) for at, (owner, pid) in enumerate(self.owners.of)
        ]
        return owners, pids, any(life[2] for life in (*owners.values(), *pids.values()))

    def ended(self, at, owners, pids, state):
        """The texts of the labels of what has ended and still has peaks."""
        owner, pid = self.owners.of[at]
        (life, _, past), (process, _, earlier) = owners[owner], pids[pid]
        return [self.labels(at, one, process, state) for one in past] + [self.labels(at, life, one, state) for one in earlier]

    def started(self, at, owners, pids):
        """When the process of these labels began, in seconds since the start; None if it is the recorded one."""
        if at is None:
            return None
        owner, pid = self.owners.of[at]
        begun = [life[1] for life in (owners[owner], pids[pid]) if life[1] is not None]
        return max(begun) if pid and begun else None

    def text(self, t, start):
        """The exposition `t` seconds after `start` (Unix time), or None if the machine does not answer. With the epoch of the recording
        as the start, a moment of machine 0 is the recorded text."""
        state = self.state(t)
        if state.condition in ("unreachable", "removed"):
            return None
        owners, pids, recent = self.prepare(t, state)
        template = self.template
        rounds, moment = divmod(int(state.running // template.every), len(template.frames))
        frame = template.frames[moment]
        if state.condition == "driver":
            if template.down is None:
                return ""
            frame = template.down
        shift = Decimal(str(round(start - template.epoch, 3)))
        texts = []
        for value, rise, labels in frame.values:
            if rise:
                value = str(Decimal(value) + rounds * rise) if rounds else value
            else:
                begun = self.started(labels, owners, pids)
                value = f"{start + begun:.2f}" if begun is not None else str(Decimal(value) + shift) if shift else value
            texts.append(value)
        pieces = frame.pieces.copy()
        # A negative index counts from the end of the texts: ~0 is -1.
        values, rendered = texts, self.rendered
        pieces[1::2] = ["" if at is None else rendered[at] if at >= 0 else values[~at] for at in frame.at]
        if recent:
            for slot, kept in frame.staying.items():
                pieces[2 * slot + 1] = "".join(
                    f"{name}{old} {value}\n" for name, at, value in kept for old in self.ended(at, owners, pids, state)
                )
        return "".join(pieces)
