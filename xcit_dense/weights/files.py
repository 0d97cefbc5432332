"""Weight files on the disk: what kind they are, and whether they are damaged."""
import re
import zipfile

from ..text import first_line

#: How a file begins that torch wrote before version 1.6; it is a pickle, but not every pickle is such a file.
_OLD_TORCH = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'

#: The kinds of file that `xcit_dense.weights.read_checkpoint` reads.
CHECKPOINT_KINDS = ('torch', 'safetensors', 'pickle')


def kind_of_file(path) -> str:
    """Return one of `CHECKPOINT_KINDS`, from the first bytes of the file, or describe what else it is."""
    with open(path, 'rb') as file:
        head = file.read(512)
    if head[4:9] == b'\0\0\0\0{':  # eight bytes of length, of which the first four vary; then the header
        return 'safetensors'
    if str(path).lower().endswith('.onnx') and head.startswith(b'\x08'):  # the first field of every such file
        return 'an ONNX file'
    if head.startswith(b'PK\x03\x04'):
        return _kind_of_zip(path)
    if head.startswith(_OLD_TORCH):
        return 'torch'
    if head.startswith(b'\x80'):
        return 'pickle'
    if not head:
        return 'an empty file'
    if re.match(rb'\s*<(!doctype|html|head|\?xml)', head, re.I):
        return 'an HTML page'
    if head.startswith(b'version https://git-lfs'):
        return 'a Git LFS pointer'
    if not re.search(rb'[^\t\n\r\x20-\x7e]', head):
        return 'a text file'
    return 'a file of an unknown kind'


def _kind_of_zip(path):
    try:
        with zipfile.ZipFile(path) as file:
            names = {name.rpartition('/')[2] for name in file.namelist()}
    except Exception:  # of several types; `damage` reports what is wrong
        return 'torch'
    if 'constants.pkl' in names:
        return 'a TorchScript archive (save model.state_dict() instead)'
    return 'torch' if 'data.pkl' in names else 'a zip archive'


def damage(path) -> str | None:
    """Return what is wrong with a file of torch, by the checksums in its archive; None if it is intact.

    Files from before torch 1.6 and of other kinds have no checksums; only damage that stops the reading shows.
    """
    with open(path, 'rb') as file:
        if file.read(4) != b'PK\x03\x04' and kind_of_file(path) in CHECKPOINT_KINDS:
            return None
    try:
        if not zipfile.is_zipfile(path):  # what makes it one is at its end
            return 'its end is missing'
        with zipfile.ZipFile(path) as file:  # `torch.serialization.set_crc32_options` can turn off all checksums
            broken = any(record.CRC for record in file.infolist()) and file.testzip()
    except Exception as error:  # of several types, as the bytes may be anything
        return first_line(error)
    return f'the checksum of {broken} is wrong' if broken else None
