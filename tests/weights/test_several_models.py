"""One model out of a file that holds several: by name, by default, what errors offer; and the config of its run."""
import pytest
import torch
from mmengine.config import Config

from helpers.models import assert_equal, build, dense_state, official_state, prefixed, save
from helpers.weight_files import assert_same_tensors, branch, classifier, dino, passl_state, rejects, values, without
from xcit_dense.config.loading import load_config
from xcit_dense.weights import find_state_dict, load_model, read_checkpoint
from xcit_dense.weights.contents import config_of_checkpoint
from xcit_dense.weights.convert import convert, inspect

REGNET = {'model.stem.conv.weight': torch.ones(2, 3, 3, 3), 'model.head.fc.weight': torch.ones(5, 2)}


def averaged(state):
    return {'steps': torch.tensor(3), **prefixed(state, 'module.')}


def meta(*hooks):
    return {'mmengine_version': '0.10.7', 'cfg': f'custom_hooks = {[dict(type=hook) for hook in hooks]!r}'}


def passl(state):
    return passl_state(state) | {f'backbone.{n}': v for n, v in state.items() if n.endswith('num_batches_tracked')}


#: Each: a file from three models, and which of them is there by which name; the first is the default.
FILES = {
    'dino': (lambda t, s, e: {'state_dict': dino(t, s), 'meta': meta('DINOHook')}, dict(teacher=0, student=1)),
    'dino with average': (
        lambda t, s, e: {'state_dict': dino(t, s), 'ema_state_dict': averaged(dino(e, s)), 'meta': meta('AverageHook')},
        dict(teacher=0, student=1, ema=2)),
    "dino's": (
        lambda t, s, e: {'student': prefixed(branch(s), 'module.'), 'teacher': branch(t), 'epoch': 3,
                         'optimizer': {'state': {}, 'param_groups': []}, 'dino_loss': {'center': torch.zeros(1, 6)}},
        dict(teacher=0, student=1)),
    'distilled': (
        lambda t, s, e: {'state_dict': prefixed(s, 'backbone.'), 'teacher': prefixed(t, 'model.backbone.'),
                         'ema_state_dict': averaged(prefixed(e, 'backbone.')),
                         'meta': meta('TeacherHook', 'AverageHook')},
        dict(student=1, teacher=0, ema=2, state_dict=1, ema_state_dict=2)),
    'a model with both': (lambda t, s, e: {'teacher': t, 'student': s, 'model': e}, dict(
        model=2, teacher=0, student=1)),
    'passl': (lambda t, s, e: prefixed(passl(t), 'Teacher.') | prefixed(passl(s), 'Student.'),
              dict(student=1, teacher=0)),
    'passl, distilled': (lambda t, s, e: prefixed(REGNET, 'Teacher.') | prefixed(passl(s), 'Student.'),
                         dict(student=1)),
    'timm': (lambda t, s, e: {'state_dict': s, 'state_dict_ema': e, 'epoch': 3}, dict(state_dict=1, ema=2)),
    'deit': (lambda t, s, e: {'model': s, 'model_ema': e}, dict(model=1, ema=2, model_ema=2)),
    "mmengine's average": (
        lambda t, s, e: {'state_dict': prefixed(e, 'backbone.'), 'ema_state_dict': averaged(prefixed(s, 'backbone.')),
                         'meta': meta('CheckHook', 'mmengine.EMAHook')},
        dict(ema=2, state_dict=2, ema_state_dict=1)),
    "this package's average": (
        lambda t, s, e: {'state_dict': prefixed(s, 'backbone.'), 'ema_state_dict': averaged(prefixed(e, 'backbone.')),
                         'meta': meta('AverageHook')},
        dict(state_dict=1, ema=2)),
    'an average of no framework': (lambda t, s, e: {'state_dict': s, 'ema_state_dict': e}, dict(state_dict=1, ema=2))}
TITLES = {
    'dino': ('teacher', 'student'),
    'dino with average': ('teacher', 'student', 'ema (ema_state_dict.teacher)', 'ema_state_dict.student'),
    "dino's": ('teacher', 'student'), 'distilled': ('student (state_dict)', 'teacher', 'ema (ema_state_dict)'),
    'passl': ('Student', 'Teacher'), 'timm': ('state_dict', 'ema (state_dict_ema)'),
    'deit': ('model', 'ema (model_ema)'), "mmengine's average": ('ema (state_dict)', 'ema_state_dict')}


@pytest.mark.parametrize('name', FILES)
def test_each_model_comes_out_tensor_for_tensor(name, tmp_path):
    states = [official_state() for _ in range(3)]
    make, numbers = FILES[name]
    path = save(tmp_path / 'several.pth', make(*states))
    for which, number in [(None, next(iter(numbers.values()))), *numbers.items()]:
        wanted = without(states[number], 'head.') if 'dino' in name else states[number]
        convert(path, tmp_path / 'one.pth', 'official', which=which and which.upper())
        assert_same_tensors(read_checkpoint(tmp_path / 'one.pth')['model'], wanted)
    titles = TITLES.get(name, ())
    for which in {'student', 'teacher', 'ema', 'other'} - {*numbers, 'teacher' if 'distilled' in name else ''}:
        with rejects(f"several.pth holds no model named '{which}'; it holds ") as caught:
            find_state_dict(read_checkpoint(path), path, which)
        assert str(caught.value).endswith(', '.join(titles))
    assert titles in ((), tuple(line.partition(':')[0] for line in inspect(path) if ': weights in' in line))


@pytest.mark.parametrize('cfg', ({'cfg': 'custom_hooks = [1, None]'}, {}))
def test_which_container_has_the_average_is_not_guessed(cfg):
    """mmengine wrote the file, and its config does not tell."""
    content = FILES["mmengine's average"][0](*(official_state() for _ in range(3)))
    content['meta'] = {'mmengine_version': '0.10.7', **cfg}
    with rejects("no model named 'ema'; it holds ") as caught:
        find_state_dict(content, 'run.pth', 'ema')
    assert str(caught.value).endswith(' state_dict, ema_state_dict')


def test_another_teacher_is_an_error_that_says_what_it_holds(tmp_path):
    content = FILES['distilled'][0](*(official_state() for _ in range(3))) | {'teacher': REGNET}
    path, out = save(tmp_path / 'run.pth', content), tmp_path / 'out.pth'
    with rejects(f'the teacher of {path} holds no XCiT weights, but 2 tensors', 'model.stem.conv.weight',
                 'student (state_dict), teacher, ema (ema_state_dict)'):
        convert(path, out, 'timm', which='teacher')
    assert not out.exists()
    convert(path, out, 'official', which='teacher')
    assert_same_tensors(read_checkpoint(out)['model'], REGNET)  # as it is, for its library
    convert(path, out, 'timm', which='Student')
    assert 'teacher: no XCiT weights, but 2 tensors' in '\n'.join(inspect(path))
    model = torch.nn.ModuleDict(dict(backbone=classifier()))  # a whole classifier is the student
    load_model(model, read_checkpoint(path), path)
    assert_same_tensors(values(model), content['state_dict'])
    assert f'{len(values(model))} of {len(values(model))} tensors from the student of {path} (' in model.weights_from


def starts(path, prefix=None, kind=build):
    """Return the tensors of a model after it began with a file by ``init_cfg``, and what it says about them."""
    init_cfg = dict(type='Pretrained', checkpoint=str(path)) | ({'prefix': prefix} if prefix else {})
    model = kind(init_cfg=init_cfg)
    model.init_weights()
    return model.state_dict(), model.weights_from


def headless(**options):
    return classifier(0, **options)


@pytest.mark.parametrize('target, end', (
    ('dense', 'pth'), ('official', 'pth'), ('timm', 'safetensors'), ('mmpretrain', 'pth')))
def test_no_layout_holds_the_projection_head(target, end, tmp_path):
    """But a model starts from any of them, as from the work dir itself, and from a file of only a backbone."""
    state, out = official_state(), tmp_path / f'out.{end}'
    path = save(tmp_path / 'epoch_1.pth', {'state_dict': dino(state, official_state())})
    (tmp_path / 'last_checkpoint').write_text(str(path))
    said = '\n'.join(convert(tmp_path, out, target))
    assert f'read the teacher of {path}: ' in said and 'patch 16) with class token, projection head' in said
    assert f'left out, because the layout {target} cannot hold it: ' in said and 'projection head (' in said
    for source in (out, tmp_path, save(tmp_path / 'backbone.pth', without(state, 'head.'))):
        for kind in (build, headless)[:1 if (target, source) == ('dense', out) else 2]:  # it has no class token
            got = without(starts(source, kind=kind)[0], 'fpn')
            assert_equal(got, {name: state[name] for name in got})


@pytest.mark.parametrize('kind, name, prefixes', (
    (headless, 'dino', {None: 0, 'teacher': 0, 'student': 1, 'Student': 1, 'student.backbone': 1,
                        'teacher.backbone.': 0, 'backbone': 0}),
    (build, "dino's", {None: 0, 'teacher': 0, 'student': 1, 'student.backbone': 1}),
    (build, 'distilled', {None: 1, 'teacher': 0, 'student': 1, 'ema': 2, 'teacher.model.backbone': 0}),
    (headless, 'passl', {None: 1, 'student': 1, 'Teacher': 0})))
def test_init_cfg_takes_the_teacher_or_what_its_prefix_names(kind, name, prefixes, tmp_path):
    states = [official_state() for _ in range(3)]
    path = save(tmp_path / 'several.pth', FILES[name][0](*states))
    for prefix, number in prefixes.items():
        got, said = starts(path, prefix, kind)
        for tensor in without(got, 'fpn'):
            assert torch.equal(got[tensor], states[number][tensor]), (prefix, tensor)
        wanted = ('the teacher of', 'the student of', 'the average of the weights of')[number]
        assert f'tensors from {wanted} {path} (weights in' in said


def test_a_prefix_that_names_no_model_is_a_part_of_names(tmp_path):
    """As in a file with a teacher, a student and more in one dict, or what follows the model."""
    student, dense = dense_state(), dense_state()
    path = save(tmp_path / 'semi.pth', {'state_dict': {
        **prefixed(dense, 'teacher.backbone.'), **prefixed(student, 'student.backbone.'), 'scale': torch.ones(1)}})
    assert_equal(starts(path, 'student')[0], student)
    with rejects('no XCiT weights under the prefix ema; ', ' of the file: state_dict'):
        starts(path, 'ema')
    with rejects('backbone.pth holds no XCiT weights under the prefix student; '):
        starts(save(tmp_path / 'backbone.pth', dense), 'student')
    path = save(tmp_path / 'dino.pth', {'state_dict': dino(official_state(), official_state())})
    with rejects('the student of ', ' tensors such as ', ' under the prefix head; expected'):
        starts(path, 'student.head')


def read(text):
    return config_of_checkpoint(dict(meta=dict(cfg=text), state_dict={}))


def test_it_is_the_config_that_was_written():
    for name in ('maskrcnn_xcit_s12_p8_coco', 'semfpn_xcit_n12_p16_small'):
        cfg = load_config(name)
        assert read(cfg.pretty_text) == cfg.to_dict()
    values = dict(a=-1.5, b=None, c=(1, [2, 'x']), d={1: 2, 'a-b': dict(e=True)}, f=())
    assert read(Config(values, format_python_code=False).pretty_text) == values
    for checkpoint in ([], {}, dict(meta=None), dict(meta=[]), dict(cfg='x = 1')):
        assert config_of_checkpoint(checkpoint) == {}


@pytest.mark.parametrize('value', (
    '__import__("os").getcwd()', 'a', 'dict(b=len("x"))', 'dict([("b", 1)])', 'dict(**{})', '{**{}}', '[*()]',
    '{{}: 1}', '1 + 1', 'dict({}, {})', 'dict({}, a=1)', '-"x"', 'open("x")', '{[]: 1}', 'f"{a}"',
    '[i for i in "ab"]', 'object.dict()', 'dict(b=[(1, {2: x})])'))
def test_a_value_that_is_no_literal_is_unknown(value):
    assert read(f'x = 1\ny = 2\nx = {value}\nx.z = 3\nif y:\n    y = 4') == dict(y=2)


@pytest.mark.parametrize('text', (
    None, 3, b'x = 1', '', 'x = ', 'x = 1\0', 'x = "\ud800"', 'x = 1' + '+1' * 10**5, 'x = ' + '(' * 10**5,
    'x = ' + '[' * 150 + ']' * 150 + '[0]' * 10**5, 'x = ' + 'dict(a=' * 10**5, 'x = ' + '-' * 10**5 + '1',
    'x = ' + '9' * 10**5, 'x = a' + '.a' * 10**5))
def test_hostile_text_says_nothing(text):
    assert read(text) == {}
