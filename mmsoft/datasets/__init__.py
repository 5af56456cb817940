"""Data that the package makes itself."""

from .shapes import SHAPES, draw_shapes

__all__ = ['SHAPES', 'draw_shapes']
