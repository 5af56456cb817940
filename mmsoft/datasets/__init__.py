"""Data: the layouts on disk, reading that survives bad files, seeded sampling, and data that the package draws."""

from .shapes import SHAPES, draw_shapes

__all__ = ['SHAPES', 'draw_shapes']
