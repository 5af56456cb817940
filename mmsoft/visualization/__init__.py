"""Pictures of samples and predictions, and curves of training logs."""

from .curves import curve_table, plot_curves, read_scalars
from .drawing import contact_sheet, draw_sample

__all__ = ['contact_sheet', 'curve_table', 'draw_sample', 'plot_curves', 'read_scalars']
