"""Pictures of samples and predictions, of what attention does, and curves of training logs."""

from . import figures
from .attention import AttentionMap, attention_maps, attention_rows
from .claims import injectivity, locality
from .curves import curve_table, plot_curves, read_scalars
from .diagnosis import diagnose
from .drawing import contact_sheet, draw_class, draw_instances, draw_label_map, draw_sample, whole_labels
from .fields import feature_colours, field_sides, pca_colours, receptive_fields, stage_maps
from .newton import newton_convergence, newton_residuals, spectrum
from .pictures import DrawnVideo, can_write, opencv_name, write_picture

__all__ = [
    'AttentionMap',
    'DrawnVideo',
    'attention_maps',
    'attention_rows',
    'can_write',
    'contact_sheet',
    'curve_table',
    'diagnose',
    'draw_class',
    'draw_instances',
    'draw_label_map',
    'draw_sample',
    'feature_colours',
    'field_sides',
    'figures',
    'injectivity',
    'locality',
    'newton_convergence',
    'newton_residuals',
    'opencv_name',
    'pca_colours',
    'plot_curves',
    'read_scalars',
    'receptive_fields',
    'spectrum',
    'stage_maps',
    'whole_labels',
    'write_picture',
]
