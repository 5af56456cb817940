"""Logs and processes of segmentation runs; hooks come with the schedule, which counts iterations."""

custom_imports = dict(imports=['mmsoft'])  # gives mmcv its operators also under mmsegmentation's own tools
default_scope = 'mmseg'
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
