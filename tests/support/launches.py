"""What counts the package's own operators."""

from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Names of the package's own operators, a launch each."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == 'mmsoft':
            self.names.append(function._schema.name.split('::')[1])
        return function(*args, **(kwargs or {}))
