"""What each tool reads from its command line: alone, with every option, and what it does not take."""
import pytest
import yaml
from docs.documented import parse

from xcit_dense.cli import tool_names

#: Tool: the least that it takes, and what it reads from that but None, False, 0 and empty lists.
LEAST = dict(
    adapt=('c', dict(config='c', arch='small_12_p16')),
    attention=('w i --out o', dict(checkpoint='w', images='i', out='o')),
    benchmark=('', dict(
        sizes=['small_12'], patches=[8, 16], images=[(800, 1280), (512, 512)], modes=['inference', 'training'],
        rivals=['authors'], runs=5, max_tokens=400_000, out='work_dirs/benchmark')),
    check_data=('c', dict(config='c', out='work_dirs/check_data')),
    classify=('w i', dict(checkpoint='w', images='i', out='classified.json', top=5)),
    convert_checkpoint=('in --inspect', dict(source='in', inspect=True)),
    export=('c w o.onnx', dict(config='c', checkpoint='w', out='o.onnx')),
    make_demo_data=('out', dict(out='out', train=480, val=80, size=192)),
    measure=('c --data-root d', dict(config='c', data_root='d', iterations=3, images=4, out='measured.json')),
    plot_curves=('run', dict(work_dir='run')),
    predict=('c w i --out o', dict(config='c', checkpoint='w', images='i', out='o', score_thr=0.3, dtype='float32')),
    test=('c w', dict(config='c', checkpoint='w', launcher='none', dtype='float32')),
    train=('c', dict(config='c', launcher='none', data_findings='stop')))
OF_DATA = ('--data-root d --train-images e --train-annotations f ff --val-images g --val-annotations h hh '
           '--test-images i --test-annotations j jj --val-share 0.1 --palette k --ignore-label 11 12 '
           '--instances number --class-name l ')
#: Every option of each tool that is not in `LEAST`, with a value, of lists with two.
OPTIONS = dict(
    adapt='--arch nano_12_p8 --out o --data-root d',
    attention='--show components --block 4 12 --size 384 --config c --overwrite',
    benchmark='--sizes nano_12 tiny_12 --patches 16 8 --images 64x96 128x64 --batch 3 --dtype float32 float16 --modes '
              'training inference --rivals --runtimes openvino onnxruntime --on-paper --compile --runs 2 --growth '
              '--max-tokens 9000 --detector --out o --overwrite',
    check_data=f'--cfg-options a=1 b=2 --cfg-options c=3 {OF_DATA} --strict --to coco e --no-cache --out o --overwrite',
    classify='--out o --top 3 --size 96 --crop-ratio 0.5 --config c --overwrite',
    export='--cfg-options a=1 b=2 --scores --backbone --image-size 9 8 --overwrite',
    make_demo_data='--train 1 --val 2 --size 3 --seed 4 --grey --classes star disc',
    measure='--cfg-options a=1 b=2 --iterations 5 --images 6 --amp float16 --pretrained --out o --overwrite',
    plot_curves='--out o --overwrite',
    predict='--cfg-options a=1 b=2 --score-thr 0.5 --image-size 9 8 --dtype bfloat16 --tile 7 --overlap 0.5 '
            '--labels yolo --device cuda --no-graphs --overwrite',
    test=f'--work-dir w {OF_DATA} --launcher slurm --local-rank 3 --show-dir s --at-least a=1 b=2 --cfg-options c=3 '
         'd=4 --size 9 --crop-ratio 0.5 --image-size 7 8 --dtype bfloat16 --runtime openvino --report r --tta --knn 5 '
         '--batch-size 6 --workers 4 --device cpu --no-graphs --overwrite --sizes 160 224',
    train=f'--work-dir w {OF_DATA} --launcher mpi --local_rank 2 --resume --overwrite --no-pretrained --data-findings '
          'warn --config-findings warn --amp bfloat16 --compile --auto-scale-lr --cfg-options c=3 d=4 --image-size 9 8 '
          '--epochs 7 --batch-size 6 --lr 0.5 --workers 4 --augment light --suggest --init-from i --val-loss --log '
          'tensorboard wandb --seed 3 --device cuda:1 --no-fit --patience 2 --save-teacher --no-graphs --canvas 9 8')
#: Of these, what is not read as it is written.
READ = dict(
    benchmark=dict(images=[(64, 96), (128, 64)], rivals=[], detector='gpu'),
    check_data=dict(cfg_options=['a=1', 'b=2', 'c=3']), test=dict(at_least=[('a', 1), ('b', 2)]),
    train=dict(resume='auto', suggest='-'))


def read(line):
    """Return what a tool reads from a command line, which begins with its name."""
    name, *args = line.split()
    return {name: value for name, value in vars(parse(name, args)).items() if name != 'started'}


def written(options):
    """Return the values after each option of a text, as numbers if they read so; True if there is none."""
    found = {}
    for name, *values in (part.split() for part in f' {options}'.split(' --')[1:]):
        values = [yaml.safe_load(value) for value in values]
        found[name.replace('-', '_')] = (values if len(values) > 1 else values[0]) if values else True
    return found


def rejected(line, capsys):
    with pytest.raises(SystemExit) as end:
        read(line)
    assert end.value.code == 2
    return capsys.readouterr().err


def set_in(found):
    return {key: value for key, value in found.items() if value not in (None, False, [], ())}


@pytest.mark.parametrize('name', tool_names())
def test_defaults_and_every_option(name):
    (least, defaults), options = LEAST[name], OPTIONS.get(name, '')
    wanted = written(options) | READ.get(name, {})
    found = read(f'{name} {least}')
    assert set_in(found) == defaults
    assert set_in(read(f'{name} {least} {options}')) == set_in({**defaults, **wanted})
    others = {'runtime', 'linear', 'iterations', 'minutes'} if options else {'out', 'to', 'which', 'overwrite'}
    # they exclude one of these options
    assert {*found} - {*defaults, *wanted} <= others, 'an option has no value in OPTIONS'


def test_values_that_options_may_have():
    assert set_in(read('benchmark --detector any --rivals timm swin_t')) == {
        **LEAST['benchmark'][1], 'detector': 'any', 'rivals': ['timm', 'swin_t']}
    assert read('convert_checkpoint in out.pth --to timm --which teacher --overwrite') == dict(
        source='in', out='out.pth', to='timm', which='teacher', inspect=False, overwrite=True)
    for line, name, wanted in (
            ('train c --resume a.pth', 'resume', 'a.pth'), ('train c --suggest a.py', 'suggest', 'a.py'),
            ('check_data c --data d', 'data_root', 'd'), ('measure c --data d', 'data_root', 'd'),
            ('test c w --report', 'report', ''),  # in the work dir
            ('benchmark --images 32X33 32x32', 'images', [(32, 33), (32, 32)]), ('benchmark --batch 1', 'batch', 1),
            ('test c w --knn', 'knn', 20), ('test c w --linear', 'linear', 100),
            ('test c w --linear 5', 'linear', 5), ('test c w --linear short', 'linear', 'short'),
            ('train --amp c.py', 'amp', 'auto'), ('train --amp float16 c', 'amp', 'float16'),
            ('train c --amp --lr 1', 'amp', 'auto'),
            ('test c w --amp', 'dtype', 'bfloat16'), ('predict c w i --out o --amp', 'dtype', 'bfloat16'),
            *((f'{tool} --launcher {name}', 'launcher', name) for tool in ('train c', 'test c w')
              for name in ('none', 'pytorch', 'slurm', 'mpi'))):
        assert read(line)[name] == wanted, line


#: By tool the options that it rejects, in addition to the least that it takes.
REJECTED = dict(
    attention='--show x, --block x, --size 0, --size x',
    benchmark='--detector x, --patches 4, --sizes x, --batch 0, --batch -1, --runs x, --runs 1.5, --max-tokens -1, '
              '--images 64, --images 31x32, --images 32x31, --images 32x32x3',
    check_data='--to', classify='--top 0, --crop-ratio nan', export='one_too_many',
    make_demo_data='--train x, --size 1.5', measure='--iterations 0, --iterations x, --images -1, --images x',
    predict='--score-thr nan, --tile 1.5, --device gpu, --overlap inf, --labels x, one_too_many',
    test='--knn 0, --linear 0, --linear long, --size 64.5, --sizes 64 0, --sizes 64 x, --crop-ratio nan, --launcher x',
    train='--lr x, --lr inf, --amp fp16, --canvas 9 0, --val-share nan, --launcher x, --data-findings x, '
          '--config-findings x, --local_rank x')


@pytest.mark.parametrize('name', REJECTED)
def test_values_that_they_may_not(name, capsys):
    for options in REJECTED[name].split(', '):
        said = rejected(f'{name} {LEAST[name][0]} {options}', capsys).rpartition('error: ')[2]
        assert options.split()[0] in said and options.split()[-1] in said, options
    if name == 'test':
        assert 'epochs, or short' in rejected('test c w --linear long', capsys)


def test_what_may_not_be_left_out(capsys):
    for line in ('attention w i', 'predict c w i', 'measure c', 'train', 'test', 'convert_checkpoint',
                 'plot_curves', 'make_demo_data', 'classify w', 'check_data', 'export w'):
        assert 'required' in rejected(line, capsys), line
    for words in ('in', 'in out', 'in --to timm', 'in out --inspect', 'in --inspect --to timm',
                  'in --inspect --which teacher'):
        assert 'IN OUT --to LAYOUT or IN --inspect' in rejected(f'convert_checkpoint {words}', capsys), words


def test_a_work_dir_stands_alone_and_options_between_the_others():
    for line, wanted in (('test w', dict(config='w', checkpoint=None)),
                         ('export w o.onnx', dict(config='w', checkpoint=None, out='o.onnx')),
                         ('predict w --out o i', dict(config='w', checkpoint=None, images='i', out='o')),
                         ('predict c w --out o i', dict(config='c', checkpoint='w', images='i', out='o')),
                         ('predict c --out o w --device cpu i', dict(config='c', checkpoint='w', images='i', out='o'))):
        assert read(line).items() >= wanted.items(), line


@pytest.mark.parametrize('words', ('m.onnx i --out o', 'm.onnx --out o i'))
def test_an_exported_file_needs_no_config(words):
    found = read(f'predict {words}')
    assert set_in(found) == dict(checkpoint='m.onnx', images='i', out='o', score_thr=0.3, dtype='float32')
    assert {*found} == {*read('predict c w i --out o')}
    assert read(f'predict {words} --runtime openvino') == {**found, 'runtime': 'openvino'}


@pytest.mark.parametrize('args, words', (
    ('c m.onnx i', 'm.onnx is an exported file, which needs no CONFIG'), ('m.onnx', 'IMAGES'),
    *((f'm.onnx i --{option}', f'--{option.split()[0]} is only for checkpoints') for option in (
        'dtype bfloat16', 'image-size 64', 'device cpu', 'cfg-options a=1')),
    ('m.onnx i --runtime x', 'openvino'), ('m.onnx i --runtim', '--runtim'),
    ('c w i --runtime openvino', 'exported file')))
def test_what_goes_with_an_exported_file(args, words, capsys):
    assert words in rejected(f'predict {args} --out o', capsys)
