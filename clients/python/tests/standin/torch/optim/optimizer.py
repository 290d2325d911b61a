"""The stand-in's `torch.optim.optimizer`."""

from .. import Tensor


class Optimizer:
    """Has two tensors of state for each parameter, like Adam."""

    def __init__(self, parameters):
        self.param_groups, self.state = [{"params": list(parameters)}], {}

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                size = parameter._block[1]
                if parameter not in self.state:
                    self.state[parameter] = {"step": 0, "exp_avg": Tensor(size), "exp_avg_sq": Tensor(size)}
                self.state[parameter]["step"] += 1
