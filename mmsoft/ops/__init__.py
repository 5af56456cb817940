"""Pure tensor functions; ``*_reference`` and ``*_oracle`` are the slow, obvious versions that tests compare with."""

from mmsoft.versions import require

require('torch')

from .attention import softmax_free_attention, softmax_free_attention_reference
from .convolutions import add_convolved, conv_unit, squeezed_convolution, window_conv, window_conv_reference
from .dispatch import explain, kernels
from .gaussian import gaussian_gram, gaussian_kernel, gaussian_kernel_reference
from .gelu import gelu_tanh, gelu_tanh_reference
from .inline import (
    add_depthwise,
    dynamic_depthwise,
    dynamic_depthwise_reference,
    inline_attention,
    inline_attention_reference,
)
from .landmarks import (
    average_beyond,
    average_windows,
    bounded_grid,
    landmark_grid,
    landmark_share,
    scattered_indices,
    to_landmark_windows,
)
from .layout import from_windows, lacking, to_map, to_multiples, to_tokens, to_windows
from .linear import linear
from .linear_attention import linear_attention, linear_attention_reference
from .linear_gelu import linear_gelu, linear_gelu_reference
from .local import (
    add_head_convolution,
    add_head_convolution_reference,
    add_predicted_convolution,
    add_predicted_convolution_reference,
    inline_with_convolution,
    inline_with_convolution_reference,
)
from .newton import (
    guarded_scale,
    guarded_scale_reference,
    matrix_scale,
    newton_inverse,
    newton_oracle,
)
from .nystrom import nystrom_attention, nystrom_attention_reference, softmax_pinv, softmax_pinv_reference
from .projections import project
from .random_features import orthogonal_directions, positive_features, positive_features_reference
from .residual import add_norm, add_norm_reference, add_residual
from .rotary import (
    position_angles,
    position_frequencies,
    rotary_attention,
    rotary_attention_reference,
    rotary_features,
    rotate,
    rotate_reference,
)
from .slices import map_wise, token_wise
from .softmax import softmax_attention

__all__ = [
    'add_convolved',
    'add_depthwise',
    'add_head_convolution',
    'add_head_convolution_reference',
    'add_norm',
    'add_norm_reference',
    'add_predicted_convolution',
    'add_predicted_convolution_reference',
    'add_residual',
    'average_beyond',
    'average_windows',
    'bounded_grid',
    'conv_unit',
    'dynamic_depthwise',
    'dynamic_depthwise_reference',
    'explain',
    'from_windows',
    'gaussian_gram',
    'gaussian_kernel',
    'gaussian_kernel_reference',
    'gelu_tanh',
    'gelu_tanh_reference',
    'guarded_scale',
    'guarded_scale_reference',
    'inline_attention',
    'inline_attention_reference',
    'inline_with_convolution',
    'inline_with_convolution_reference',
    'kernels',
    'lacking',
    'landmark_grid',
    'landmark_share',
    'linear',
    'linear_attention',
    'linear_attention_reference',
    'linear_gelu',
    'linear_gelu_reference',
    'map_wise',
    'matrix_scale',
    'newton_inverse',
    'newton_oracle',
    'nystrom_attention',
    'nystrom_attention_reference',
    'orthogonal_directions',
    'position_angles',
    'position_frequencies',
    'positive_features',
    'positive_features_reference',
    'project',
    'rotary_attention',
    'rotary_attention_reference',
    'rotary_features',
    'rotate',
    'rotate_reference',
    'scattered_indices',
    'softmax_attention',
    'softmax_free_attention',
    'softmax_free_attention_reference',
    'softmax_pinv',
    'softmax_pinv_reference',
    'squeezed_convolution',
    'to_landmark_windows',
    'to_map',
    'to_multiples',
    'to_tokens',
    'to_windows',
    'token_wise',
    'window_conv',
    'window_conv_reference',
]
