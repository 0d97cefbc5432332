"""The tables of a report: as CSV, and as text for the log."""
import csv

from ..files import atomic_write
from ..text import counted, printable

#: With more classes, the log has only the worst.
MOST_LINES, _FEW = 40, 20
_LETTERS = 32


def write_classes(path, content):
    """Write the table of classes as CSV, with all digits; the columns are named by their keys."""
    columns, rows = content.classes
    with atomic_write(path) as part, open_csv(part) as file:
        table = csv.writer(file)
        table.writerow(['class', *(column.key for column in columns), 'note'])
        for row in rows:
            table.writerow([row.name, *('' if row.values.get(column.key) is None else row.values[column.key]
                                        for column in columns), row.note])


def open_csv(path):
    """Open a new CSV file. Names from folders may have letters that UTF-8 cannot have: these are escaped."""
    return open(path, 'w', newline='', encoding='utf-8', errors='backslashreplace')


def tell_classes(content) -> str:
    """Return the table of classes as text, with the digits of its columns; of many classes only the worst."""
    columns, rows = content.classes
    shown_rows = rows if len(rows) <= MOST_LINES else rows[:_FEW]
    lines = [['class', *(column.key for column in columns)],
             *([short(row.name, _LETTERS), *(shown(row.values.get(column.key), column) for column in columns)]
               for row in shown_rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ['  '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    if len(shown_rows) < len(rows):
        text.append(f'and {counted(len(rows) - len(shown_rows), "classes")} more in the CSV file')
    return '\n'.join(text)


def shown(value, column) -> str:
    """Return a number as a table shows it; ``-`` if there is none. Text stays as it is."""
    if value is None or isinstance(value, str):
        return '-' if value is None else value
    return f'{value:,}' if column.digits is None else f'{value:.{column.digits}f}'


def short(name, letters: int) -> str:
    """Return a name that can be printed, cut to a number of letters."""
    name = printable(name)
    return name if len(name) <= letters else f'{name[:letters - 3]}...'
