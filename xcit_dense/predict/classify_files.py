"""The classes of many image files: printed lines, and a JSON file for programs."""
import json
from pathlib import Path

from tqdm import tqdm

from ..errors import DataError, OutputError
from ..files import OwnFiles, atomic_write
from ..text import counted, first_line, printable
from .files import without_drawn

#: The line of an image has the best class, and others whose probability is at least this.
_TOLD_FROM = 0.1
_WIDEST = 48


def classify_files(classifier, source, root, paths, out_file, top: int = 5, overwrite: bool = False):
    """Print the classes of image files and write them as JSON; after an interruption it has those that were done.

    Args:
        classifier: A `xcit_dense.predict.classifying.Classifier`.
        source: Its weights as the user named them, for the JSON file.
        root: The folder that holds the files.
        paths: The image files. Among several, pictures that this package drew are skipped.
        out_file: The JSON file.
        top: How many classes each image gets.
        overwrite: Whether to replace an ``out_file`` that no earlier call wrote.

    Raises:
        DataError: There is no image; or some could not be read, after the others were classified.
        OutputError: ``out_file`` cannot be written, or no earlier call wrote it.
    """
    root, out_file = Path(root), Path(out_file).expanduser()
    paths = without_drawn(root, paths)
    content = dict(checkpoint=str(source), size=classifier.size, crop_ratio=classifier.crop_ratio,
                   names_from=classifier.names_from, images=[], unreadable=[])
    with OwnFiles(out_file.parent, 'classify', overwrite) as own:
        own.claim(out_file.name)
        try:
            _classify_all(classifier, root, paths, top, content)
        finally:
            if content['images'] or content['unreadable']:
                _write(out_file, content)
                print(f'{counted(len(content["images"]), "images")} in {out_file}')
    if content['unreadable']:
        title = f'{len(content["unreadable"]):,} of {counted(len(paths), "images")} could not be classified:'
        raise DataError('\n  '.join([title, *(printable(found['reason']) for found in content['unreadable'])]))


def _classify_all(classifier, root, paths, top, content):
    """Classify files and print a line for each, or a block for a single file; collect the results in ``content``."""
    names = [printable(path.relative_to(root)) for path in paths]
    width = min(max(map(len, names)), _WIDEST)
    # without a terminal, which would show a bar, the lines show the progress
    with tqdm(total=len(paths), unit='image', disable=True if len(paths) == 1 else None, leave=False) as bar:
        for path, name in zip(paths, names, strict=True):
            try:
                guesses = classifier(path, top)
            except DataError as error:
                content['unreadable'].append(dict(path=str(path), reason=first_line(error)))
            else:
                content['images'].append(dict(path=str(path), top=[guess._asdict() for guess in guesses]))
                tqdm.write(_block(name, guesses) if len(paths) == 1 else _line(name, guesses, width))
            bar.update()


def _block(name, guesses):
    return '\n'.join([name, *(f'  {guess.probability:6.1%}  {printable(guess.name)}' for guess in guesses)])


def _line(name, guesses, width):
    """Return the best class of an image in columns, and the next ones if they are likely."""
    name = name if len(name) <= width else f'...{name[3 - width:]}'
    best, *others = guesses
    more = ', '.join(f'{guess.probability:.0%} {printable(guess.name)}' for guess in others
                     if guess.probability >= _TOLD_FROM)
    return f'{name:<{width}}  {best.probability:6.1%}  {printable(best.name)}' + (f'  ({more})' if more else '')


def _write(out_file, content):
    try:
        with atomic_write(out_file) as part:
            part.write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise OutputError(f'cannot write {out_file}: {error.strerror}') from error
