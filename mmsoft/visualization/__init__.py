"""Pictures of samples and predictions, and curves of training logs."""

from .curves import curve_table, plot_curves, read_scalars
from .drawing import contact_sheet, draw_class, draw_instances, draw_label_map, draw_sample
from .pictures import DrawnVideo, can_write, opencv_name, write_picture

__all__ = [
    'DrawnVideo',
    'can_write',
    'contact_sheet',
    'curve_table',
    'draw_class',
    'draw_instances',
    'draw_label_map',
    'draw_sample',
    'opencv_name',
    'plot_curves',
    'read_scalars',
    'write_picture',
]
