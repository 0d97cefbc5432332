"""Text functions that errors, reports and help texts share."""
import difflib


def with_slashes(name: str) -> str:
    """Return a path in a user's file with ``/`` instead of the separators of Windows."""
    return name.replace('\\', '/')


def nearest(name, names, count: int = 1, cutoff: float = 0.6) -> list:
    """Return at most ``count`` names that are similar to what a user wrote, the most similar first.

    The least similarity is ``cutoff``, from 0 (any name) to 1 (only the name itself).
    """
    return difflib.get_close_matches(str(name), list(dict.fromkeys(map(str, names))), n=count, cutoff=cutoff)


def did_you_mean(name, names, count: int = 1, otherwise: str = '') -> str:
    """Return the end of an error about an unknown name: ``; did you mean small or nano?``, else ``otherwise``."""
    near = nearest(name, names, count)
    return f'; did you mean {" or ".join(near)}?' if near else otherwise


def first_line(error) -> str:
    """Return the first line of an error, or its type if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def listed(words, count: int = 5) -> str:
    """Return the first few words, and how many more there are."""
    words = list(words)
    return ', '.join(words[:count]) + (f' and {len(words) - count:,} more' if len(words) > count else '')


def digits(value) -> str:
    """Return a number with three digits, from 100 on without a fraction: ``0.417``, ``21,300``."""
    return f'{value:.3g}' if abs(value) < 100 else f'{value:,.0f}'


def counted(number, plural) -> str:
    """Return a number with its noun: ``1 image without annotations``, ``1,234 classes``."""
    word, *rest = plural.split(' ')
    return ' '.join([f'{number:,}', singular(word) if number == 1 else word, *rest])


def named_classes(names) -> str:
    """Return names of classes as text."""
    return f'{"the class" if len(names) == 1 else f"{len(names)} classes"} {listed(map(repr, names))}'


def singular(plural) -> str:
    """Return the singular of a regular noun: ``image``, ``category``, ``class``, ``batch``."""
    for end, single in (('ies', 'y'), ('sses', 'ss'), ('ches', 'ch'), ('s', '')):
        if plural.endswith(end):
            return plural.removesuffix(end) + single
    return plural


def printable(text) -> str:
    """Return a text in which everything that a terminal would act on or cannot show is escaped."""
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shown(value, length: int = 80) -> str:
    """Return a value as Python writes it, cut to a length."""
    text = repr(value)
    return text if len(text) <= length else f'{text[:length]}...'


def type_name(kind) -> str:
    """Return the last part of the name of a type in a config: a string (with or without scope), a class or None."""
    return getattr(kind, '__name__', str(kind or '').rpartition('.')[2])


def packages_in(kind) -> list:
    """Return the packages of a class and its bases, nearest first; none for anything else."""
    return [base.__module__.partition('.')[0] for base in getattr(kind, '__mro__', ())]
