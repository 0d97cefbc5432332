"""Words that errors, reports and help share."""
import difflib


def nearest(name, names, count: int = 1, cutoff: float = 0.6) -> list:
    """Return those of some names that are most like one, the most alike first.

    Args:
        name: What a user wrote.
        names: What there is.
        count: How many at most.
        cutoff: From 0, anything, to 1, the name itself.
    """
    return difflib.get_close_matches(str(name), list(dict.fromkeys(map(str, names))), n=count, cutoff=cutoff)


def first_line(error) -> str:
    """Return the first line of an error, or its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def listed(words, count: int = 5) -> str:
    """Return the first few of some words, and how many more there are."""
    words = list(words)
    return ', '.join(words[:count]) + (f' and {len(words) - count:,} more' if len(words) > count else '')


def counted(number, plural) -> str:
    """Return a number with what is counted: ``1 image without annotations``, ``1,234 classes``."""
    word, *rest = plural.split(' ')
    return ' '.join([f'{number:,}', singular(word) if number == 1 else word, *rest])


def singular(plural) -> str:
    """Return the singular of a regular noun: ``image``, ``category``, ``class``."""
    for end, single in (('ies', 'y'), ('sses', 'ss'), ('s', '')):
        if plural.endswith(end):
            return plural.removesuffix(end) + single
    return plural


def printable(text) -> str:
    """Return a text with escapes for what a terminal would act on or cannot show."""
    return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def shown(value, length: int = 80) -> str:
    """Return a value as Python writes it, cut to a length."""
    text = repr(value)
    return text if len(text) <= length else f'{text[:length]}...'


def type_name(kind) -> str:
    """Return the last part of the name of a type in a config: a text with or without a scope, a class, or None."""
    return getattr(kind, '__name__', str(kind or '').rpartition('.')[2])
