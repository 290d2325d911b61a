"""What Python code holds: the pointers of the program's tensors, and the roles that they have."""

import gc
import sys
import types
import unittest
from unittest import mock

from vram_exporter import _roles

from . import support


class Roles(unittest.TestCase):
    def setUp(self):
        self.torch = support.standin(self, STANDIN_DEVICES="2")

    def gather(self, seconds=60.0):
        return _roles.gather(seconds)

    def role(self, tensor, held=None):
        rank = (held or self.gather()).ranks.get(tensor.data_ptr())
        return None if rank is None else _roles.ROLES[rank]

    def test_a_training_program(self):
        weight, batch = self.torch.nn.Parameter(100), self.torch.Tensor(50)
        weight.grad = self.torch.Tensor(100)
        optimizer = self.torch.optim.Optimizer([weight])
        optimizer.step()
        held = self.gather()
        self.assertEqual(self.role(weight, held), "parameters")
        self.assertEqual(self.role(weight.grad, held), "gradients")
        self.assertEqual({self.role(optimizer.state[weight][name], held) for name in ("exp_avg", "exp_avg_sq")}, {"optimizer_state"})
        self.assertEqual(self.role(batch, held), "other")
        self.assertEqual(len(held.ranks), 5)
        self.assertEqual((held.complete, held.graph), (True, False))
        self.assertEqual(set(held.looked_for), {"parameters", "gradients", "optimizer_state", "other"})

    def test_the_first_of_several_roles_counts(self):
        weight = self.torch.nn.Parameter(100)
        optimizer = self.torch.optim.Optimizer([weight])
        optimizer.state[weight] = {"itself": weight}
        weight.grad = self.torch.Tensor(7)
        optimizer.state["more"] = [weight.grad]
        held = self.gather()
        self.assertEqual((self.role(weight, held), self.role(weight.grad, held)), ("parameters", "gradients"))

    def test_state_in_containers(self):
        optimizer = self.torch.optim.Optimizer([])
        inner, deep = self.torch.Tensor(1), self.torch.Tensor(1)
        optimizer.state["shampoo"] = {"lists": [(inner,), {"a": 1}]}
        optimizer.state["deep"] = [[[[[[deep]]]]]]
        optimizer.state["itself"] = optimizer.state
        held = self.gather()
        self.assertEqual((self.role(inner, held), self.role(deep, held)), ("optimizer_state", "other"))

    def test_a_parameter_of_an_optimizer_needs_no_module(self):
        plain = self.torch.Tensor(10, requires_grad=True)
        optimizer = self.torch.optim.Optimizer([plain])
        self.assertEqual(self.role(plain), "parameters")
        del optimizer

    def test_a_tensor_of_a_subclass_that_is_marked_as_a_parameter(self):
        class Own(self.torch.Tensor):
            pass

        marked, plain = Own(10), Own(10)
        marked._is_param = True
        held = self.gather()
        self.assertEqual((self.role(marked, held), self.role(plain, held)), ("parameters", "other"))

    def test_memory_on_the_cpu_is_not_noted(self):
        kept = self.torch.Tensor(10, is_cuda=False)
        self.assertEqual(self.gather().ranks, {})
        del kept

    def test_the_result_of_recorded_operations_shows_a_graph(self):
        loss = self.torch.Tensor(4, requires_grad=True, is_leaf=False)
        self.assertTrue(self.gather().graph)
        self.assertEqual(self.role(loss), "other")
        del loss
        self.assertFalse(self.gather().graph)

    def test_no_code_of_the_program_runs(self):
        ran = []

        class Meta(type):
            def __hash__(cls):
                ran.append("hash")
                return 7

            def __eq__(cls, other):
                ran.append("eq")
                return True

        class Hostile(self.torch.Tensor):
            data_ptr = property(lambda self: ran.append("data_ptr"))
            is_cuda = property(lambda self: ran.append("is_cuda"))
            grad = property(lambda self: ran.append("grad"))

            def __getattr__(self, name):
                ran.append(name)

        class Optimizer(self.torch.optim.Optimizer):
            state = property(lambda self: ran.append("state"))
            param_groups = property(lambda self: ran.append("groups"))

            def __init__(self):
                pass

        class Other(metaclass=Meta):
            __class__ = property(lambda self: ran.append("class"))

        real = self.torch.Tensor(1)
        kept = [Hostile.__new__(Hostile), Optimizer(), Other()]
        base = self.torch.Tensor
        base.is_cuda.__set__(kept[0], True), base.requires_grad.__set__(kept[0], True), base.is_leaf.__set__(kept[0], True), base.grad.__set__(kept[0], None)
        base._block.__set__(kept[0], real._block)
        ran.clear()
        held = self.gather()
        self.assertEqual(ran, [])
        self.assertEqual(self.role(real, held), "other")
        base._block.__set__(kept[0], None)

    def test_a_tensor_without_a_storage_makes_the_pass_incomplete(self):
        class Sparse(self.torch.Tensor):
            pass

        sparse = Sparse(1)
        block, sparse._block = sparse._block, 7  # Its storage raises.
        held = self.gather()
        self.assertFalse(held.complete)
        self.assertEqual(held.looked_for, ())
        sparse._block = block

    def test_frozen_objects_make_the_pass_incomplete(self):
        with mock.patch.object(gc, "get_freeze_count", return_value=200000):
            weight = self.torch.nn.Parameter(10)
            held = self.gather()
        self.assertEqual((held.complete, held.looked_for, self.role(weight, held)), (False, (), "parameters"))

    def test_what_the_interpreter_froze_at_its_start_hides_no_tensor(self):
        with mock.patch.object(gc, "get_freeze_count", return_value=375):
            weight = self.torch.nn.Parameter(10)
            held = self.gather()
        self.assertEqual((held.complete, self.role(weight, held)), (True, "parameters"))
        self.assertIn("gradients", held.looked_for)

    def test_the_time_is_bounded(self):
        kept = self.torch.nn.Parameter(10)
        self.assertFalse(self.gather(-1.0).complete)
        del kept

    def test_a_tensor_is_dropped_when_it_has_been_read(self):
        kept = [self.torch.Tensor(10), self.torch.Tensor(20)]
        states, visit = [], _roles._Pass._visit

        def freeing(found, tensor, is_parameter):
            kept.clear()
            states.append([block["state"] for block in self.torch._C.allocator.blocks.values()])
            visit(found, tensor, is_parameter)

        with mock.patch.object(_roles._Pass, "_visit", freeing):
            self.gather()
        self.assertEqual([sorted(now) for now in states], [["active_allocated"] * 2, ["active_allocated", "inactive"]])

    def test_an_older_pytorch_is_asked_about_modules_and_optimizers_only(self):
        torch = support.standin(self, STANDIN_VERSION="2.9.1")
        module = type("Model", (torch.nn.Module,), {})()
        module.weight, module.mean = torch.nn.Parameter(100), torch.Tensor(10)
        module._parameters, module._buffers = {"weight": module.weight}, {"mean": module.mean}
        alone, batch = torch.nn.Parameter(100), torch.Tensor(50)
        alone.grad = torch.Tensor(100)
        optimizer = torch.optim.Optimizer([alone])
        optimizer.step()
        with mock.patch.object(_roles._objects, "referring", side_effect=_roles._objects.referring) as searched:
            held = self.gather()
        self.assertNotIn(torch.Tensor, [type_ for call in searched.call_args_list for type_ in call.args[0]])
        tensors = (module.weight, module.mean, alone, alone.grad, optimizer.state[alone]["exp_avg"], batch)
        roles = ["parameters", "other", "parameters", "gradients", "optimizer_state", None]
        self.assertEqual([self.role(tensor, held) for tensor in tensors], roles)
        self.assertEqual((held.complete, held.graph, held.looked_for), (False, False, ()))
        self.assertEqual(len(held.modules.pointers), 2)

    def test_a_version_that_is_no_number_is_an_older_one(self):
        self.assertFalse(_roles._version(self.torch) < (2, 11))
        with mock.patch.object(self.torch, "__version__", "git"):
            self.assertFalse(self.gather().complete)

    def test_gradients_that_another_thread_replaces_are_not_read(self):
        import importlib

        distributed = importlib.import_module("torch.nn.parallel.distributed")
        weight = self.torch.nn.Parameter(10)
        weight.grad = self.torch.Tensor(10)
        for view, known in ((False, True), (True, False)):
            wrapper = distributed.DistributedDataParallel(gradient_as_bucket_view=view)
            held = self.gather()
            self.assertEqual("gradients" in held.looked_for, known)
            self.assertEqual(self.role(weight.grad, held), "gradients" if known else "other")
            del wrapper

    def test_a_tensor_that_is_distributed_over_processes(self):
        class DTensor(self.torch.Tensor):
            __module__ = "torch.distributed.tensor"
            __slots__ = ("_local_tensor",)

        whole, local = DTensor(1), self.torch.Tensor(10)
        whole._local_tensor = local
        whole._is_param = True
        self.assertEqual(self.role(local), "parameters")

    def test_tensors_without_memory_are_left_out(self):
        class FakeTensor(self.torch.Tensor):
            __module__ = "torch._subclasses.fake_tensor"

        fake = FakeTensor(1)
        self.assertIsNone(self.role(fake))

    def test_a_kv_cache_of_transformers(self):
        class Cache:
            pass

        class DynamicCache(Cache):
            pass

        class Layer:
            pass

        module = types.ModuleType("transformers.cache_utils")
        module.Cache = Cache
        new, old, layer = DynamicCache(), DynamicCache(), Layer()
        layer.keys, layer.values = self.torch.Tensor(10), self.torch.Tensor(10)
        new.layers = [layer, None]
        old.key_cache, old.value_cache = [self.torch.Tensor(10), None], (self.torch.Tensor(10),)
        tensors = [layer.keys, layer.values, old.key_cache[0], old.value_cache[0]]
        self.assertNotIn("kv_cache", self.gather().looked_for)
        # The package itself imports what is read from it.
        lazy = mock.Mock(spec=[])
        with mock.patch.dict(sys.modules, {"transformers": lazy, "transformers.cache_utils": module}):
            held = self.gather()
        self.assertIn("kv_cache", held.looked_for)
        self.assertEqual([self.role(tensor, held) for tensor in tensors], ["kv_cache"] * 4)
        with mock.patch.dict(sys.modules, {"transformers": lazy}):
            self.assertNotIn("kv_cache", self.gather().looked_for)

    def test_without_the_switch_for_overrides_nothing_is_gathered(self):
        with mock.patch.object(sys.modules["torch._C"], "DisableTorchFunctionSubclass", None):
            self.assertIsNone(self.gather())
        with mock.patch.dict(sys.modules):
            del sys.modules["torch"]
            self.assertIsNone(self.gather())


if __name__ == "__main__":
    unittest.main()
