"""Logs and processes of classification runs; hooks come with the schedule."""

default_scope = 'mmengine'
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(
    type='LogProcessor',
    window_size=50,
    by_epoch=True,
    custom_cfg=[dict(data_src='images_per_s', method_name='mean', window_size=50)],
)
log_level = 'INFO'
load_from = None
resume = False
