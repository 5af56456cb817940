"""Whole models in one file, which runs without torch and OpenMMLab; ``mmsoft.deploy`` runs it."""

from .building import ExportError
from .exporter import export

__all__ = ['ExportError', 'export']
