"""Linear-complexity attention backbones for dense vision."""

__version__ = '0.1.0'
