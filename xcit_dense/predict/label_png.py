"""Label maps written row by row, whatever their size."""
import struct
import zlib

import numpy as np

from ..files import atomic_write

#: How many rows are compressed at a time.
_ROWS = 256


def write_png(path, labels, kind):
    """Write an array (H, W), in memory or memory-mapped, as a grey PNG of uint8 or uint16."""
    kind = np.dtype(kind).newbyteorder('>')
    height, width = labels.shape
    compress = zlib.compressobj()
    with atomic_write(path) as part, open(part, 'wb') as file:

        def write(name, data):
            file.write(struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data)))

        file.write(b'\x89PNG\r\n\x1a\n')
        write(b'IHDR', struct.pack('>IIBBBBB', width, height, 8 * kind.itemsize, 0, 0, 0, 0))
        for start in range(0, height, _ROWS):
            rows = np.ascontiguousarray(labels[start:start + _ROWS].astype(kind)).view(np.uint8)
            rows = np.pad(rows.reshape(len(rows), -1), ((0, 0), (1, 0)))  # each row starts with its filter type: none
            if data := compress.compress(rows.tobytes()):
                write(b'IDAT', data)
        write(b'IDAT', compress.flush())
        write(b'IEND', b'')
