"""Weights: every file form, every mismatch named, nothing run from a pickle."""

import contextlib
import fnmatch
import functools
import hashlib
import http.server
import importlib
import io
import os
import pickle
import re
import shutil
import threading
from collections import OrderedDict

import pytest
import torch
from helpers import MINI, ROOT, relative_error
from mmengine.model import BaseModel
from mmengine.runner import Runner
from safetensors.torch import save_file

import mmsoft
from mmsoft.checkpoints import (
    Checkpoint,
    CheckpointError,
    from_published,
    load,
    load_pretrained,
    names_for,
    read_checkpoint,
    read_state_dict,
)
from mmsoft.models import FAMILIES, SOFT, SOFTClassifier
from mmsoft.weights import fitting
from mmsoft.weights.pickles import SKIPPED, Machine

to_ours = FAMILIES['SOFT'].to_ours


def loaded(checkpoint, **options):
    model = SOFT(MINI, init_cfg=dict(type='Pretrained', checkpoint=checkpoint), **options)
    model.init_weights()
    return model


def test_every_form_of_published_file_gives_the_same_model(golden, tmp_path):
    expected = from_published(golden.weights, attn=golden.attn)
    decoy = {name: torch.zeros_like(value) for name, value in golden.weights.items()}
    ignored = ('patch_embed1.proj.1.num_batches_tracked', 'relative_position_index', 'block4.0.attn_mask')
    extra = {name: torch.tensor(5) for name in ignored}
    forms = {
        'bare.pth': golden.weights,
        'ema.pth': dict(state_dict=decoy, state_dict_ema=golden.weights, epoch=3, optimizer=dict(lr=0.1)),
        'state_dict.pth': dict(state_dict=OrderedDict(golden.weights), model='resnet'),
        'model.pth': dict(model=golden.weights | extra),
        'module.pth': {f'module.{name}': value for name, value in golden.weights.items()},
        'half.pth': {name: value.half() for name, value in golden.weights.items()},
    }
    for name, form in forms.items():
        torch.save(form, tmp_path / name)
    save_file({name: value.clone() for name, value in golden.weights.items()}, tmp_path / 'x.safetensors')
    for name in [*forms, 'x.safetensors']:
        model = from_published(tmp_path / name, attn=golden.attn)
        assert model.arch == expected.arch
        assert not model.training
        state = expected.state_dict()
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items() if 'tracked' not in k), name
        backbone = SOFT(model.arch, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / name)))
        backbone.init_weights()
        assert all(torch.equal(v, state[k]) for k, v in backbone.state_dict().items() if 'tracked' not in k), name


def test_a_checkpoint_at_an_address_is_fetched_once_and_checked(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    (tmp_path / 'www').mkdir()
    torch.save(golden.weights, tmp_path / 'www' / 'soft.pth')
    digest = hashlib.sha256((tmp_path / 'www' / 'soft.pth').read_bytes()).hexdigest()[:8]
    for name in (f'soft-{digest}.pth', 'soft-0123abcd.pth'):
        shutil.copy(tmp_path / 'www' / 'soft.pth', tmp_path / 'www' / name)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / 'www')
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f'http://127.0.0.1:{server.server_port}'
        good = from_published(f'{base}/soft-{digest}.pth')
        with pytest.raises(CheckpointError, match=r'0123abcd\.pth cannot be fetched: .* 0123abcd, found ' + digest):
            from_published(f'{base}/soft-0123abcd.pth')
        with pytest.raises(CheckpointError, match=r'none\.pth cannot be fetched: HTTP Error 404.*give its path'):
            from_published(f'{base}/none.pth')
        server.shutdown()
    again = from_published(f'{base}/soft-{digest}.pth')  # nobody serves it any more
    assert torch.equal(good.head.weight, again.head.weight)


def test_architecture_is_read_from_the_weights(golden):
    model = from_published(golden.weights, attn=golden.attn)
    assert model.arch == ((16, 32, 48, 64), (1, 2, 3, 4), (1, 1, 2, 1))
    assert (model.head.out_features, model.attn) == (10, golden.attn)
    assert model.stages[0].blocks[0].attn.normalize == (golden.attn == 'soft_pp')
    assert from_published(golden.weights).attn == 'soft_pp'


def test_overrides(golden, monkeypatch):
    reports = []
    monkeypatch.setattr(fitting, 'announce', lambda text, level: reports.append(text))
    image = torch.randn(1, 3, 224, 224)
    plain = from_published(golden.weights, attn=golden.attn)
    fine = from_published(golden.weights, attn=golden.attn, num_classes=3, drop_path_rate=0.3)
    assert fine.head.weight.shape == (3, 64)
    assert re.search(r'fresh +2 +kept at their random start.*\n +head.weight, head.bias', reports[-1])
    assert torch.equal(fine.stages[3].blocks[0].attn.kv.weight, golden.weights['block4.0.attn.kv.weight'])
    headless = {name: value for name, value in golden.weights.items() if not name.startswith('head')}
    assert from_published(headless, num_classes=5).head.weight.shape == (5, 64)
    with pytest.raises(CheckpointError, match=r'strict=False keeps the rest'):
        from_published(golden.weights, landmark_sampling='avg_pool')
    assert from_published(golden.weights, landmark_sampling='avg_pool', strict=False).arch == plain.arch
    larger = from_published(golden.weights, attn=golden.attn, img_size=384)
    assert larger.stages[0].position.table.shape == (1, 96, 96, 16)
    assert larger.stages[3].position.table.shape == (1, 12, 12, 64)
    assert torch.equal(larger.cls_position[0], golden.weights['pos_embed4'][0, :1])
    with torch.no_grad():  # tables resized ahead give what resizing in forward gives
        big = torch.randn(1, 3, 384, 384)
        assert relative_error(larger(big), plain(big)) < 1e-5
        assert relative_error(from_published(golden.weights, attn=golden.attn)(image), plain(image)) == 0
    with pytest.raises(TypeError, match="no option 'attention'"):
        from_published(golden.weights, attention='soft')


def test_our_files_load_into_backbones(tmp_path):
    classifier = SOFTClassifier(MINI, num_classes=4, img_size=96)
    torch.save(classifier.state_dict(), tmp_path / 'bare.pth')
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in classifier.state_dict().items()}), tmp_path / 'det.pth')
    for name in ('bare.pth', 'det.pth'):
        model = loaded(str(tmp_path / name))
        assert model.stages[0].position.table.shape == (1, 56, 56, 16)  # resized from 24 x 24
        assert torch.equal(model.norm.weight, classifier.norm.weight)
    model = loaded(str(tmp_path / 'bare.pth'), out_indices=(0, 1))
    assert torch.equal(model.stages[1].blocks[0].attn.local, classifier.stages[1].blocks[0].attn.local)


class Toy(BaseModel):
    """A model for MMEngine's Runner that has our backbone in it."""

    def __init__(self):
        super().__init__()
        self.backbone = SOFT(MINI)

    def forward(self, *images, mode='loss'):
        return dict(loss=self.backbone(torch.stack(images))[3].square().mean())


def test_a_checkpoint_that_a_real_run_wrote_loads(tmp_path):
    """With schedules (a Counter of milestones), an optimiser and a message hub of history buffers."""
    runner = Runner(
        Toy(),
        str(tmp_path),
        train_dataloader=dict(
            batch_size=2, dataset=list(torch.randn(2, 3, 32, 64)), sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3)),
        param_scheduler=[dict(type='MultiStepLR', milestones=[1, 2]), dict(type='LinearLR', start_factor=0.1, end=2)],
        default_scope='mmengine',
        experiment_name='toy',
    )
    runner.train()
    model = loaded(str(tmp_path / 'epoch_1.pth'))
    assert torch.equal(model.norm.weight, runner.model.backbone.norm.weight)


def test_the_report_names_every_outcome(golden):
    model = SOFT(MINI, img_size=96)
    weights = dict(golden.weights)
    del weights['block1.0.att.ff1.bias']
    weights['extra.weight'] = torch.zeros(1)
    weights['block2.0.att.ff1.weight'] = torch.zeros(3, 3)
    with pytest.raises(CheckpointError, match='do not fit SOFT') as error:
        load_pretrained(model, weights)
    report = load_pretrained(model, weights, strict=False)
    assert report.missing == ['stages.0.blocks.0.mlp.fc1.bias']
    assert report.unexpected == ['extra.weight']
    assert report.misshapen == ['stages.1.blocks.0.mlp.fc1.weight (3, 3) for (128, 32)']
    assert report.resized == [f'stages.{i}.position.table' for i in range(4)]
    assert set(report.left_aside) == {'head.weight', 'head.bias', 'cls_token', 'cls_position'}
    own = [name for name in model.state_dict() if not name.endswith('num_batches_tracked')]
    assert len(report.matched) == len(own) - 4 - 2
    for word in ('missing', 'unexpected', 'misshapen', 'resized', 'matched', 'extra.weight', '(3, 3) for (128, 32)'):
        assert word in str(report)
        assert word in str(error.value)


def test_a_part_that_a_checkpoint_has_twice_is_not_unexpected(tmp_path):
    """DDQ's decoder has a part of the head once it has trained; one with other values is of another model."""
    model = torch.nn.ModuleDict(
        dict(head=torch.nn.ModuleDict(dict(boxes=torch.nn.Linear(2, 3), b=torch.nn.Linear(3, 3))))
    )
    weights = model.state_dict()
    twice = {**weights, **{f'decoder.{name[5:]}': value.clone() for name, value in weights.items() if 'boxes' in name}}
    report = fitting.load_weights(model, twice, source='file')
    assert report.left_aside == ['decoder.boxes.weight', 'decoder.boxes.bias']
    with pytest.raises(CheckpointError, match=r'unexpected +2 '):
        fitting.load_weights(model, {**twice, 'decoder.boxes.weight': torch.zeros(3, 2)}, source='file')


def test_a_refusal_changes_nothing(golden):
    model = SOFT(MINI)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = dict(golden.weights)
    del weights['norm.bias']
    with pytest.raises(CheckpointError):
        load_pretrained(model, weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('strict', [True, False])
def test_weights_that_match_nothing_are_an_error(strict, golden):
    with pytest.raises(CheckpointError, match=r'match 0 of the .* tensors of SOFT'):
        load_pretrained(SOFT(MINI), {'conv1.weight': torch.zeros(3), 'fc.bias': torch.zeros(3)}, strict=strict)
    almost = {name: value for name, value in golden.weights.items() if name.startswith('patch_embed1')}
    with pytest.raises(CheckpointError, match='match 19 of the'):
        load_pretrained(SOFT(MINI), almost | {'pos_embed1': golden.weights['pos_embed1']}, strict=strict)


def test_bad_sources_are_named(tmp_path, golden):
    with pytest.raises(CheckpointError, match=r"checkpoint 'nowhere.pth' does not exist"):
        loaded('nowhere.pth')
    (tmp_path / 'cut.pth').write_bytes(b'PK\x03\x04 cut off')
    with pytest.raises(CheckpointError, match=r'cut\.pth.* cannot be read'):
        read_checkpoint(tmp_path / 'cut.pth')
    torch.save(dict(epoch=3), tmp_path / 'empty.pth')
    with pytest.raises(CheckpointError, match=r'holds no weights.*found epoch'):
        read_state_dict(tmp_path / 'empty.pth')
    torch.save([1, 2], tmp_path / 'list.pth')
    with pytest.raises(CheckpointError, match='dict of tensors; got list'):
        read_state_dict(tmp_path / 'list.pth')
    with pytest.raises(
        CheckpointError, match=r'not a published checkpoint of a known family: .*pos_embed1 of SOFT,.*conv1\.weight'
    ):
        from_published({'conv1.weight': torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"starts with 'neck\.'"):
        load_pretrained(SOFT(MINI), golden.weights, prefix='neck')
    with pytest.raises(CheckpointError, match='pos_embed1 has 7 entries'):
        to_ours({'pos_embed1': torch.zeros(1, 7, 4)})
    lacking = {name: value for name, value in golden.weights.items() if name != 'pos_embed3'}
    with pytest.raises(CheckpointError, match=r'lack .*stages\.2\.position\.table'):
        from_published(lacking)


class Bomb:
    def __reduce__(self):
        return os.system, ('touch exploded',)


class Fuse:
    """A bomb inside bytes that torch itself would unpickle without care."""

    def __reduce__(self):
        inner = io.BytesIO()
        torch.save(Bomb(), inner)
        return torch.storage._load_from_bytes, (inner.getvalue(),)


@pytest.mark.parametrize('payload', [Bomb, Fuse])
@pytest.mark.parametrize('zipped', [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path, monkeypatch, zipped, payload):
    monkeypatch.chdir(tmp_path)
    bomb = dict(state_dict=dict(weight=torch.zeros(1)), payload=payload())
    torch.save(bomb, 'bomb.pth', _use_new_zipfile_serialization=zipped)
    (tmp_path / 'bare.pth').write_bytes(pickle.dumps(dict(payload=payload())))
    for name in ('bomb.pth', 'bare.pth'):
        with pytest.raises(
            CheckpointError, match=r"pth' (is refused: it holds (\w+\.system|torch.*_load_from_bytes)|cannot be read)"
        ):
            read_checkpoint(name)
    assert not (tmp_path / 'exploded').exists()
    with contextlib.suppress(CheckpointError):  # it is not a model's
        load_pretrained(SOFT(MINI), 'bomb.pth', trust=True)
    assert (tmp_path / 'exploded').exists()
    torch.jit.script(torch.nn.Linear(2, 2)).save('script.pth')
    with pytest.raises(CheckpointError, match=r'TorchScript archive'):
        read_checkpoint('script.pth')


@pytest.mark.parametrize('kind', ['pathlib PosixPath', 'pathlib WindowsPath', 'pathlib._local PosixPath'])
def test_a_path_beside_the_weights_is_passed_by_whatever_wrote_it(kind):
    """On another system, or with Python 3.13, where paths come from a module of another name."""
    module, name = kind.encode().split()
    assert Machine(SKIPPED, 99).run(io.BytesIO(b'c' + module + b'\n' + name + b'\n(Vruns\ntR.')) == {}


def test_a_misspelt_option_of_init_cfg_says_what_there_is():
    wrong = dict(type='Pretrained', checkpoint='file.pth', strct=False)
    with pytest.raises(ValueError, match=r"init_cfg: option 'strct' is unknown; choose one of .*strict, new_head"):
        SOFT(MINI, init_cfg=wrong).init_weights()


def test_modules_of_before_are_those_of_now():
    for name in ('archives', 'files', 'messages', 'meta', 'pickles', 'renaming', 'shapes', 'sources', 'writing'):
        before = importlib.import_module(f'mmsoft.checkpoints.{name}')
        assert before is importlib.import_module(f'mmsoft.weights.{name}') is getattr(mmsoft.checkpoints, name)
    assert importlib.import_module('mmsoft.checkpoints.families').FAMILIES is FAMILIES


def test_a_checkpoint_tells_what_it_holds(golden, tmp_path):
    """One way in, for backbones, classifiers and detectors; the former functions are names for it."""
    torch.save(dict(state_dict=golden.weights, meta=dict(epoch=3)), tmp_path / 'theirs.pth')
    theirs = Checkpoint.open(tmp_path / 'theirs.pth')
    assert (theirs.family.title, theirs.published, theirs.meta) == ('SOFT', True, dict(epoch=3))
    assert theirs.weights.keys() == load(golden.weights).keys()
    model = SOFT(MINI, attn=golden.attn)
    report = theirs.load_into(model)
    assert report.complete
    assert torch.equal(model.stages[0].blocks[0].attn.q.weight, golden.weights['block1.0.att.mha.W_q.weight'])

    detector = torch.nn.ModuleDict(dict(backbone=SOFT(MINI, attn=golden.attn), neck=torch.nn.Linear(2, 2)))
    weights = {name: value + 1 for name, value in detector.state_dict().items()}
    opened = Checkpoint.open(weights)
    assert (opened.family.title, opened.published, opened.meta, opened.source) == ('SOFT', False, {}, 'a state dict')
    assert opened.load_into(detector).complete
    assert torch.equal(detector['neck'].bias, weights['neck.bias'])
    assert opened.load_into(model).complete
    assert torch.equal(model.norm.bias, weights['backbone.norm.bias'])
    report = Checkpoint.open(model.state_dict()).load_into(detector, strict=False)  # of a backbone, to its place
    assert report.missing == ['neck.weight', 'neck.bias']
    assert names_for(detector, model.state_dict()).keys() == {f'backbone.{name}' for name in model.state_dict()}
    other = Checkpoint.open(dict(x=torch.ones(1)))
    assert (other.family, other.published) == (None, False)
    with pytest.raises(CheckpointError, match=r'these weights match 0 of the \d+ tensors of SOFT'):
        other.load_into(model)
    with pytest.raises(ValueError, match="new_head 'maybe' is unknown; choose one of never, differ, always"):
        theirs.load_into(model, new_head='maybe')


def test_a_missing_file_of_the_authors_is_told_where_to_get(tmp_path):
    """The names in the sentence and in docs/weights.md are those of models here."""
    from mmsoft.engine.config import check_pretrained, load_config

    cfg = load_config(mmsoft.config_path('mask_rcnn_inline_pvt_tiny_1x_coco'))
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='no.pth')
    with pytest.raises(CheckpointError, match=r'--no-pretrained\. The .* at https://github.com/Leap'):
        check_pretrained(cfg)
    known = {name for family in FAMILIES.values() for name in family.variants}
    told = {}
    for name in ('soft_tiny.pth', 'InLine_Swin_T.pth'):
        with pytest.raises(
            CheckpointError, match=rf"{name}' does not exist .*The authors' files are linked at"
        ) as error:
            read_checkpoint(tmp_path / name)
        told[name] = str(error.value)
    assert 'https://github.com/fudan-zvg/SOFT: SOFT tiny fits soft_tiny, ' in told['soft_tiny.pth']
    assert 'https://github.com/LeapLabTHU/InLine: ' in told['InLine_Swin_T.pth']
    for pattern in re.findall(r'inline_\w+\*|soft_pp_\*\w*', ' '.join(told.values())):
        assert fnmatch.filter(known, pattern), pattern
    with pytest.raises(CheckpointError, match=r"epoch_12.pth' does not exist \(working directory '[^']+'\)$"):
        read_checkpoint(tmp_path / 'epoch_12.pth')
    named = re.findall(r'`((?:soft|inline)_\w+)`', (ROOT / 'docs' / 'weights.md').read_text(encoding='utf-8'))
    assert len(named) > 20
    assert set(named) <= known
    for prefix in ('inline_deit', 'inline_pvt', 'inline_swin', 'inline_cswin'):
        assert {name for name in known if name.startswith(prefix)} <= set(named)
