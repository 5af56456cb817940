"""Pictures of samples and predictions, and curves of training logs."""

from .attention import AttentionMap, attention_maps, attention_rows
from .curves import curve_table, plot_curves, read_scalars
from .drawing import contact_sheet, draw_class, draw_instances, draw_label_map, draw_sample
from .pictures import DrawnVideo, can_write, opencv_name, write_picture

__all__ = [
    'AttentionMap',
    'DrawnVideo',
    'attention_maps',
    'attention_rows',
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
