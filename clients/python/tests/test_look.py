"""The message about each device: the roles and sites of all allocated blocks, and their sums."""

import json
import random
import unittest

from vram_exporter import _connection, _look
from vram_exporter._roles import ROLES, Held

CALL = {"filename": "/x/site-packages/torch/nn/modules/module.py", "line": 1747, "name": "_call_impl"}


def train(line=12, file="/home/me/train.py"):
    return {"filename": file, "line": line, "name": "step"}


def block(address, size, frames=(), state="active_allocated", **more):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": list(frames), **more}


def snapshot(*blocks, device=0):
    return {"segments": [{"device": device, "address": 0, "blocks": list(blocks)}], "device_traces": []}


def held(complete=True, graph=True, **pointers):
    """`other=[5]` means that a tensor in the role `other` is at the address 5."""
    ranks = {pointer: ROLES.index(role) for role, found in pointers.items() for pointer in found}
    return Held(ranks, ROLES if complete else (), complete, graph)


def described(given, found, before=None, old=()):
    after = _look.allocated(given)
    old = None if old is None else dict(old)
    summaries = _look.describe(after if before is None else _look.allocated(before), after, found, old)
    return {device: summary.message("pytorch", "GPU-%d" % device, _look.looked_for(found, old)) for device, summary in summaries.items()}


def roles(*arguments, **more):
    """The roles of the only device, without those that have nothing."""
    (message,) = described(*arguments, **more).values()
    return {role: size for role, size in message["roles"].items() if size}


class Blocks(unittest.TestCase):
    def test_only_allocated_blocks_count(self):
        given = snapshot(block(0, 512), block(512, 1024, state="active_pending_free"), block(1536, 512, state="active_awaiting_free"), block(2048, 64, state="inactive"))
        self.assertEqual(roles(given, held()), {"unknown": 512})

    def test_a_block_counts_with_what_was_requested(self):
        for requested, counted in ((500, 500), (512, 512), (0, 512), (513, 512), (None, 512), ("7", 512)):
            given = block(0, 512)
            given["requested_size"] = requested
            self.assertEqual(roles(snapshot(given), held()), {"unknown": counted})
        del given["requested_size"]
        self.assertEqual(roles(snapshot(given), held()), {"unknown": 512})

    def test_a_snapshot_of_another_form_is_an_error(self):
        for given in ({}, {"segments": [{}]}, {"segments": [{"device": 0, "blocks": [{"size": 1}]}]}, []):
            with self.assertRaises((KeyError, TypeError)):
                _look.allocated(given)


    def test_the_largest_free_block_of_a_device(self):
        given = snapshot(block(0, 512), block(512, 1024, state="inactive"), block(2048, 4096, state="active_pending_free"))
        given["segments"] += snapshot(block(9000, 2048, state="inactive"), block(12000, 64, state="inactive"))["segments"]
        given["segments"] += snapshot(block(1 << 40, 8192, state="inactive"), device=3)["segments"]
        self.assertEqual([_look.largest_free(given, device) for device in (0, 3, 1)], [2048, 8192, 0])


class Roles(unittest.TestCase):
    def test_a_pointer_inside_a_block_belongs_to_it(self):
        given = snapshot(block(1000, 512), block(1512, 512), block(3000, 512))
        self.assertEqual(roles(given, held(parameters=[1000, 1100], gradients=[2023], other=[2024, 999, 2999, 3512])), {"parameters": 512, "gradients": 512, "unknown": 512})

    def test_a_block_with_several_roles_counts_once_for_the_first(self):
        given = snapshot(block(0, 900))
        for found, role in (
            (held(parameters=[5], gradients=[6], optimizer_state=[7]), "parameters"),
            (held(gradients=[6], optimizer_state=[7], kv_cache=[9]), "gradients"),
            (held(optimizer_state=[7], other=[6]), "optimizer_state"),
            (held(kv_cache=[800], other=[6]), "kv_cache"),
            (held(other=[6]), "other"),
        ):
            self.assertEqual(roles(given, found), {role: 900})

    def test_what_only_autograd_can_hold_is_activations(self):
        given = snapshot(block(0, 100, [CALL, train()]), block(512, 50, [train()]), block(1024, 25), block(2048, 12, [CALL, train()]))
        self.assertEqual(roles(given, held(other=[2048])), {"activations": 100, "unknown": 75, "other": 12})

    def test_a_result_that_autograd_recorded_is_an_activation_although_it_has_a_python_object(self):
        given = snapshot(block(0, 100, [CALL, train()]), block(512, 50, [train()]), block(1024, 25, [CALL, train()]))
        found = held(other=[0, 512, 1024], parameters=[])._replace(results=frozenset([0, 512]))
        self.assertEqual(roles(given, found), {"activations": 100, "other": 75})
        self.assertEqual(roles(given, found._replace(complete=False)), {"other": 175})

    def test_what_may_be_something_else_is_unknown(self):
        given = snapshot(block(0, 100, [CALL, train()]))
        unknown = {"unknown": 100}
        self.assertEqual(roles(given, held(graph=False)), unknown, "there is no graph")
        self.assertEqual(roles(given, held(complete=False)), unknown, "a tensor may have been missed")
        self.assertEqual(roles(given, None), unknown)
        self.assertEqual(roles(given, held(), old={0: 100}), unknown, "it is older than the window")
        self.assertEqual(roles(given, held(), old=None), unknown)
        self.assertEqual(roles(given, held(), old={0: 99}), {"activations": 100})

    def test_a_block_that_appears_during_the_look_is_unknown(self):
        given = snapshot(block(0, 100, [CALL, train()]), block(512, 50, [train()]))
        for before in (snapshot(), snapshot(block(0, 99, [CALL, train()]), block(512, 50)), snapshot(block(0, 100, [train()]), block(512, 50, [train(13)]))):
            self.assertEqual(roles(given, held(parameters=[512]), before=before), {"unknown": 150})

    def test_only_determined_roles_are_in_the_message(self):
        def names(found, **more):
            return list(described(snapshot(block(0, 8)), found, **more)[0]["roles"])

        self.assertEqual(names(held()), ["parameters", "gradients", "optimizer_state", "activations", "kv_cache", "other", "unknown"])
        self.assertEqual(names(held(), old=None), ["parameters", "gradients", "optimizer_state", "kv_cache", "other", "unknown"])
        self.assertEqual(names(held(complete=False)), ["unknown"])
        self.assertEqual(names(held(complete=False, parameters=[0])), ["parameters", "unknown"])
        self.assertEqual(names(None), ["unknown"])

    def test_the_devices_are_apart(self):
        given = snapshot(block(0, 100))
        given["segments"] += snapshot(block(1 << 40, 50), device=3)["segments"]
        messages = described(given, held(parameters=[1 << 40]))
        self.assertEqual((messages[0]["roles"]["unknown"], messages[3]["roles"]["parameters"]), (100, 50))
        self.assertEqual(messages[3]["device"], "GPU-3")


class Message(unittest.TestCase):
    def test_the_form(self):
        given = snapshot(block(0, 100, [CALL, train()]), block(512, 50, [train(3)]), block(1024, 25), block(2048, 12, [CALL, train()]))
        wanted = {
            "type": "sites",
            "framework": "pytorch",
            "device": "GPU-0",
            "roles": {"parameters": 50, "gradients": 0, "optimizer_state": 0, "activations": 112, "kv_cache": 0, "other": 0, "unknown": 25},
            "sites": [{"site": "train.py:12 step", "role": "activations", "bytes": 112}, {"site": "train.py:3 step", "role": "parameters", "bytes": 50}],
            "other_bytes": 0,
            "unknown_bytes": 25,
        }
        self.assertEqual(described(given, held(parameters=[512]))[0], wanted)

    def test_one_site_in_two_roles_is_two(self):
        given = snapshot(block(0, 100, [train()]), block(512, 50, [train()]))
        sites = described(given, held(parameters=[0]))[0]["sites"]
        self.assertEqual([(site["role"], site["bytes"]) for site in sites], [("parameters", 100), ("unknown", 50)])

    def test_the_ten_largest_sites(self):
        given = snapshot(*[block(index * 4096, index + 1, [train(index + 1)]) for index in range(15)])
        message = described(given, held())[0]
        self.assertEqual([site["bytes"] for site in message["sites"]], list(range(15, 5, -1)))
        self.assertEqual(message["other_bytes"], sum(range(1, 6)))

    def test_the_line_is_bounded_and_the_smallest_sites_are_left_out(self):
        # Each of these characters takes twelve bytes in the line.
        given = snapshot(*[block(index * 4096, 1000 - index, [train(index + 1, "/a/" + "\U0001f600" * 60 + ".py")]) for index in range(15)])
        message = described(given, held())[0]
        self.assertLess(len(message["sites"]), 10)
        self.assertEqual([site["bytes"] for site in message["sites"]], list(range(1000, 1000 - len(message["sites"]), -1)))
        self.assertLessEqual(len(_connection.line(message)), 4096)
        self.assertEqual(sum(site["bytes"] for site in message["sites"]) + message["other_bytes"], sum(range(986, 1001)))
        self.assertLess(4096 - len(_connection.line(message)), 1000, "more are left out than is needed")

    def test_the_sums(self):
        choice = random.Random(7)
        for _ in range(200):
            blocks, pointers = [], {role: [] for role in ROLES}
            for index in range(choice.randrange(60)):
                size = choice.randrange(1, 4096)
                frames = choice.choice([[], [CALL, train(choice.randrange(1, 30))], [train(choice.randrange(1, 30), "/b/" + choice.choice("\U0001f600e\n") * 60)]])
                blocks.append(block(index * 4096, size, frames, choice.choice(["active_allocated"] * 5 + ["inactive"])))
                if choice.random() < 0.5:
                    pointers[choice.choice(ROLES)].append(index * 4096 + choice.randrange(4096))
            total = sum(given["size"] for given in blocks if given["state"] == "active_allocated")
            before = snapshot(*choice.sample(blocks, len(blocks) * 3 // 4))
            found = choice.choice([held(choice.random() < 0.7, choice.random() < 0.7, **pointers), None])
            for message in described(snapshot(*blocks), found, before=before, old=choice.choice([None, {0: 7}, {}])).values():
                self.assertEqual(sum(message["roles"].values()), total)
                self.assertEqual(sum(site["bytes"] for site in message["sites"]) + message["other_bytes"] + message["unknown_bytes"], total)
                text = _connection.line(message)
                self.assertLessEqual(len(text), 4096)
                self.assertEqual(json.loads(text), message)


if __name__ == "__main__":
    unittest.main()
