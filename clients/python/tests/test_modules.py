"""Memory by module path: the tree of a program's modules, and the rows that a message has room for."""

import sys
import unittest
from unittest import mock

from vram_exporter import _connection, _look, _modules, _roles

from . import support


class Modules(unittest.TestCase):
    """The stand-in for PyTorch in this process. Sizes of parameters are bytes."""

    def setUp(self):
        self.torch = support.standin(self, STANDIN_DEVICES="2")
        self.nn = self.torch.nn

    def leaf(self, size, name="Linear", device=0):
        made = type(name, (self.nn.Module,), {})()
        made.weight = self.nn.Parameter(size, device)
        return made

    def module(self, name="Model", **children):
        made = type(name, (self.nn.Module,), {})()
        for key, child in children.items():
            setattr(made, key, child)
        return made

    def block(self, mlp=400, attn=200, norm=4):
        return self.module("Block", attn=self.leaf(attn), mlp=self.module("MLP", up=self.leaf(mlp), down=self.leaf(mlp)), norm=self.leaf(norm, "Norm"))

    def gpt(self, blocks, name="GPT"):
        return self.module(name, wte=self.leaf(1000), blocks=self.nn.ModuleList(blocks), norm=self.leaf(8))

    def message(self, device=0):
        """The message about a device, or `None`."""
        held = _roles.gather(60.0)
        blocks = _look.allocated(self.torch.cuda.memory._snapshot())
        summary = _look.describe(blocks, blocks, held, {})[device]
        return None if held.modules is None else held.modules.message("pytorch", "GPU-%d" % device, summary.modules)

    def rows(self, device=0):
        """The rows of the message, whose sum must be that of the roles."""
        message = self.message(device)
        return {row["module"]: row["bytes"] for row in message["modules"]}

    def test_the_form(self):
        kept = self.module(encoder=self.leaf(100), decoder=self.leaf(300))
        rows = [{"module": "decoder", "bytes": 300}, {"module": "encoder", "bytes": 100}]
        self.assertEqual(self.message(), {"type": "modules", "framework": "pytorch", "device": "GPU-0", "modules": rows, "other_bytes": 0})
        del kept

    def test_parameters_gradients_state_and_buffers_belong_to_a_module(self):
        model = self.module(a=self.leaf(1000), b=self.leaf(10))
        model.a.weight.grad = self.torch.Tensor(1001)
        model.a.register_buffer("mean", self.torch.Tensor(5))
        optimizer = self.torch.optim.Optimizer([model.a.weight])
        optimizer.step()
        batch = self.torch.Tensor(7777)
        self.assertEqual(self.rows(), {"a": 1000 + 1001 + 2000 + 5, "b": 10})
        del batch

    def test_a_tied_weight_counts_once_for_the_first_path(self):
        model = self.module(wte=self.leaf(100), head=self.module("Linear", out=self.leaf(7)))
        model.head.weight = model.wte.weight
        self.assertEqual(self.rows(), {"wte": 100, "head.out": 7})
        again = self.module(zero=model.wte, model=model)
        self.assertEqual(self.rows(), {"zero": 100, "model.head.out": 7})
        del again

    def test_memory_of_the_module_itself(self):
        model = self.module(a=self.module(inner=self.leaf(50)))
        model.cls = self.nn.Parameter(3)
        model.a.gamma = self.nn.Parameter(4)
        self.assertEqual(self.rows(), {"a.inner": 50, "a (own)": 4, "Model (own)": 3})

    def test_a_module_without_children_has_its_class_as_its_name(self):
        kept = self.leaf(50)
        self.assertEqual(self.rows(), {"Linear": 50})
        del kept

    def test_several_roots_are_told_apart(self):
        kept = [self.module("Generator", up=self.leaf(50)), self.module("Critic", down=self.leaf(20)), self.module("Critic", down=self.leaf(10))]
        loss = self.module("Loss")
        rows = self.rows()
        self.assertEqual(set(rows), {"Generator.up", "Critic.down", "Critic#2.down"})
        self.assertEqual(sorted(rows.values()), [10, 20, 50])
        del kept, loss

    def test_a_layer_of_pytorch_alone_has_no_row(self):
        layer = type("Linear", (self.nn.Module,), {"__module__": "torch.nn.modules.linear"})()
        layer.weight = self.nn.Parameter(100)
        self.assertIsNone(_roles.gather(60.0).modules)
        kept = self.nn.ModuleList([layer])
        self.assertEqual(self.rows(), {"0": 100})
        del kept

    def test_wrappers_leave_no_trace(self):
        import importlib

        distributed = importlib.import_module("torch.nn.parallel.distributed")
        block = self.module("CheckpointWrapper", _checkpoint_wrapped_module=self.block())
        inner = self.module("OptimizedModule", _orig_mod=self.module("Generator", blocks=self.nn.ModuleList([block])))
        wrapped = distributed.DistributedDataParallel(inner)
        kept = [wrapped, self.module("AveragedModel", module=self.module("Generator", a=self.leaf(7)))]
        found = {name: size for name, size in self.rows().items() if "mlp" in name or "a" == name[-1]}
        self.assertEqual(found, {"Generator.blocks.0.mlp.up": 400, "Generator.blocks.0.mlp.down": 400, "AveragedModel.a": 7})
        del kept

    def test_parts_of_a_compiled_model_do_not_take_its_parameters(self):
        model = self.module("Model", a=self.leaf(5), b=self.leaf(6))
        part = self.leaf(0, "A")
        type(part).__module__ = "torch.fx.graph_module"
        part.weight = model.a.weight
        self.assertEqual(self.rows(), {"a": 5, "b": 6})

    def test_equal_neighbours_are_one_row(self):
        kept = self.gpt([self.block() for _ in range(12)])
        wanted = {"wte": 1000, "norm": 8, "blocks.0-11.attn": 2400, "blocks.0-11.norm": 48, "blocks.0-11.mlp.up": 4800, "blocks.0-11.mlp.down": 4800}
        self.assertEqual(self.rows(), wanted)
        self.assertEqual(self.message()["other_bytes"], 0)
        del kept

    def test_the_one_that_differs_is_a_row(self):
        blocks = [self.block() for _ in range(512)]
        blocks[17].mlp.up.weight.grad = self.torch.Tensor(900000)
        kept = self.gpt(blocks)
        message = self.message()
        self.assertEqual(message["modules"][0], {"module": "blocks.17.mlp.up", "bytes": 900400})
        self.assertEqual(sum(row["bytes"] for row in message["modules"]), 512 * 1004 + 900000 + 1008)
        self.assertEqual(len(message["modules"]), 10)
        self.assertLessEqual({"blocks.17.mlp.up", "blocks.0-16", "blocks.18-511.mlp", "blocks.18-511.attn"}, set(self.rows()))
        del kept

    def test_many_different_neighbours_are_summed(self):
        kept = self.gpt([self.block(mlp=400 + 512 * (i % 2)) for i in range(40)])
        wanted = {"wte": 1000, "norm": 8, "blocks.*.attn": 8000, "blocks.*.norm": 160, "blocks.*.mlp.up": 26240, "blocks.*.mlp.down": 26240}
        self.assertEqual(self.rows(), wanted)
        del kept

    def test_of_many_different_neighbours_a_large_one_stays_apart(self):
        kept = self.gpt([self.block(mlp=50000 if i == 17 else 400 + i) for i in range(40)])
        rows = self.rows()
        self.assertEqual((rows["blocks.17.mlp.up"], rows["blocks.17.mlp.down"]), (50000, 50000))
        self.assertEqual(rows["blocks.*.attn"], 39 * 200)
        del kept

    def test_many_names_are_one_row_or_the_largest_of_them(self):
        kept = self.module(head=self.leaf(1), experts=self.module("Dict", **{"e%d" % i: self.leaf(100) for i in range(50)}))
        self.assertEqual(self.rows(), {"experts": 5000, "head": 1})
        for i in range(9):
            getattr(kept.experts, "e%d" % i).weight.grad = self.torch.Tensor(100000)
        message = self.message()
        self.assertEqual((len(message["modules"]), message["other_bytes"]), (10, 41 * 100))
        self.assertLessEqual({"experts.e0", "experts.e8", "head"}, set(self.rows()))

    def test_many_roots(self):
        kept = [self.leaf(100 + i, "L%d" % i) for i in range(30)]
        message = self.message()
        self.assertEqual([row["bytes"] for row in message["modules"]], list(range(129, 119, -1)))
        self.assertEqual(message["other_bytes"], sum(range(100, 120)))
        del kept

    def test_the_devices_are_apart(self):
        kept = self.module(a=self.leaf(100), b=self.leaf(50, device=1))
        self.assertEqual((self.rows(0), self.rows(1)), ({"a": 100}, {"b": 50}))
        del kept

    def test_without_memory_of_modules_there_is_no_message(self):
        kept = [self.torch.Tensor(10), self.module("Loss")]
        self.assertIsNone(self.message())
        del kept

    def test_what_may_be_missed_is_not_sent(self):
        kept = self.module(a=self.leaf(100))
        with mock.patch.object(_roles.gc, "get_freeze_count", return_value=200000):
            self.assertIsNone(self.message())
        with mock.patch.object(_modules, "MODULES", 1):
            self.assertIsNone(self.message())
        with mock.patch.object(_modules, "tree", side_effect=RuntimeError("dictionary changed size during iteration")):
            self.assertIsNone(self.message())
        self.assertIsNone(_modules.tree([kept], _roles._attributes, lambda: True))
        self.assertIsNotNone(self.message())

    def test_no_code_of_the_program_runs(self):
        ran = []

        class Own(dict):
            def __iter__(self):
                ran.append("iter")
                return iter(())

            items = values = keys = __len__ = __bool__ = __iter__

        class Name(str):
            def __str__(self):
                ran.append("str")
                return "x"

            __hash__ = str.__hash__
            __eq__ = __format__ = __str__

        class Meta(type):
            __name__ = property(lambda cls: ran.append("name"))

        class Hostile(self.nn.Module, metaclass=Meta):
            def __getattribute__(self, name):
                ran.append(name)
                return object.__getattribute__(self, name)

        hostile, leaf = Hostile(), self.leaf(100)
        attributes = object.__getattribute__(hostile, "__dict__")
        attributes["_modules"] = Own({Name("a"): leaf, 7: self.leaf(9)})
        attributes["_parameters"] = Own({Name("weight"): self.nn.Parameter(5)})
        attributes["_buffers"] = 7
        ran.clear()
        rows = self.rows()
        self.assertEqual(ran, [])
        self.assertEqual(rows, {"?": 109, "Hostile (own)": 5})

    def test_a_module_that_contains_itself(self):
        model = self.module(a=self.leaf(100))
        model.itself = model
        model.a.outer = model
        model.b = self.leaf(50)
        top = self.module(top=model)
        self.assertEqual(self.rows(), {"top.a": 100, "top.b": 50})
        del top

    def test_names_are_bounded_and_printable(self):
        inner = self.leaf(100)
        for _ in range(40):
            inner = self.module(**{"deep\x1b\n\u202e": inner})
        model = self.module(**{"\U0001f600" * 200 + str(i): self.leaf(50 + i) for i in range(5)}, deep=inner)
        message = self.message()
        names = [row["module"] for row in message["modules"]]
        self.assertEqual(names[0], "\u2026" + ("deep??\u202e.".replace("\u202e", "?") * 40)[-128:-1])
        self.assertTrue(all(1 <= len(name) <= 128 and name.isprintable() for name in names))
        self.assertLessEqual(len(_connection.line(message)), 4096)
        self.assertLess(len(names), 6)
        self.assertEqual(sum(row["bytes"] for row in message["modules"]) + message["other_bytes"], 100 + 50 + 51 + 52 + 53 + 54)
        del model

    def test_a_deep_and_a_wide_program(self):
        inner = self.leaf(100)
        for _ in range(3000):
            inner = self.module(a=inner)
        wide = self.nn.ModuleList([self.leaf(1) for _ in range(3000)])
        rows = self.rows()
        self.assertEqual(sorted(rows.values()), [100, 3000])
        self.assertIn("ModuleList.0-2999", rows)
        del wide, inner

    def test_a_pass_keeps_no_module(self):
        held = _roles.gather(60.0)
        kept = self.module(a=self.leaf(100))
        held = _roles.gather(60.0)
        before = sys.getrefcount(kept)
        del held
        self.assertEqual(sys.getrefcount(kept), before)


if __name__ == "__main__":
    unittest.main()
