"""No weight decay on norms, biases, position tables, tables of relative positions and class tokens."""

optim_wrapper = dict(
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'position.table': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'cls_token': dict(decay_mult=0.0),
            'cls_position': dict(decay_mult=0.0),
        },
    ),
)
