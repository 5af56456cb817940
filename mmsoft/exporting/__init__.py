"""Whole models in one file, which runs without torch and OpenMMLab; ``mmsoft.deploy`` runs it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .building import ExportError as ExportError
    from .exporter import export as export

__all__ = ['ExportError', 'export']


def __getattr__(name: str) -> Any:
    """Loaded when used: the benchmark of a file has a process without torch."""
    if name not in __all__:
        raise AttributeError(f'module mmsoft.exporting has no attribute {name!r}; it has {", ".join(__all__)}')
    from .building import ExportError
    from .exporter import export

    return dict(ExportError=ExportError, export=export)[name]
