"""The mistakes that can be planted in the package, and how a sample is drawn."""
import ast
import itertools
import random
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ('annotations', 'cli', 'compat', 'config', 'data', 'draw', 'export', 'models', 'predict', 'report', 'ssl',
         'train', 'weights')
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}
NAMES = dict(min='max', max='min', any='all', all='any', sorted='list')


def mutations(tree):
    """Yield each possible change of a file: the node, a function that changes the tree, and a description."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    yield from _of_node(parent, field, index, node)


def _of_node(parent, field, index, node):
    def put(new):
        if index is None:
            return swap(parent, field, new)
        return lambda: getattr(parent, field).__setitem__(index, new or ast.Pass())

    def swap(owner, name, new):
        return lambda: setattr(owner, name, new)

    if isinstance(node, ast.BoolOp):
        yield node, swap(node, 'op', SWAPS[type(node.op)]()), 'and/or'
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _is_text(node):
        yield node, swap(node, 'op', SWAPS[type(node.op)]()), 'operator'
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield node, (lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())), 'comparison'
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, put(node.operand), 'sign'
    elif (isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)) and field != 'returns'
          and getattr(parent, 'arg', None) != 'strict'):  # strict= of zip: the lengths are equal by construction
        new = (not node.value) if isinstance(node.value, bool) else node.value + 1 if isinstance(
            node.value, int) else node.value * 2 or 1.
        yield node, swap(node, 'value', new), f'{node.value} is {new}'
    elif isinstance(node, ast.IfExp):
        yield node, put(ast.IfExp(node.test, node.orelse, node.body)), 'the other of if and else'
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(parent, ast.Call) and field == 'func':
        yield node, swap(node, 'id', NAMES[node.id]), f'{node.id} is {NAMES[node.id]}'
    elif isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield node.test, swap(node, 'test', ast.UnaryOp(ast.Not(), node.test)), 'not'
    elif isinstance(getattr(node, 'value', None), ast.Call) and isinstance(node, ast.Expr) or isinstance(
            node, (ast.AugAssign, ast.Raise)):
        yield node, put(None), 'left out'
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ('return', 'return None', 'return False'):
        yield node, swap(node, 'value', ast.Constant(None)), 'None returned'
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield node, put(ast.Continue() if isinstance(node, ast.Break) else ast.Break()), 'break/continue'
    elif isinstance(node, ast.With) and not any(item.optional_vars for item in node.items):
        yield node.items[0].context_expr, put(ast.If(ast.Constant(True), node.body, [])), 'without with'
    elif isinstance(node, ast.keyword) and node.arg not in (None, 'strict', 'help', 'metavar', 'description'):
        yield node.value, (lambda: parent.keywords.remove(node)), f'without {node.arg}='


def _is_text(node):
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, 'value', None), str)
               for side in (node.left, node.right))


def _is_sensible(node, parents):
    """Whether a change counts: not in the text of an error, an annotation, or a message."""
    while node is not None:
        if isinstance(node, ast.Raise) or isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[-1] in (
                'print_log', 'warning', 'info', 'print', 'TypeVar', 'ArgumentParser', 'Parser'):
            return False
        parent = parents.get(node)
        if isinstance(parent, (ast.arg, ast.AnnAssign)) and getattr(parent, 'annotation', None) is node:
            return False
        node = parent
    return True


def mutants_of(path):
    """Return all mutants of a file: number, lines, kind, and the original code."""
    text = path.read_text()
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found, names = [], Counter()
    for number, (node, _, kind) in enumerate(mutations(tree)):
        if kind != 'left out' and not _is_sensible(node, parents):
            continue
        if isinstance(node, ast.Expr) and not _is_sensible(node.value, parents):
            continue
        place = node
        while not isinstance(place, ast.stmt):
            place = parents[place]
        function = place
        while not isinstance(function, (ast.FunctionDef, ast.Module)):
            function = parents[function]
        last = place.end_lineno if not hasattr(place, 'body') else place.body[0].lineno
        file, before = str(path.relative_to(ROOT)), ast.unparse(node)
        name = f'{file} {getattr(function, "name", "")}: {before}: {kind}'
        names[name] += 1
        found.append(dict(name=name if names[name] == 1 else f'{name} ({names[name]})', file=file, number=number,
                          line=node.lineno, first=place.lineno, last=max(last, node.lineno), kind=kind, before=before))
    return found


def planted(path, number, text=None):
    """Return the source of a file as Python formats it, with one of its mutants or with none."""
    tree = ast.parse(text or path.read_text())
    if number is not None:
        next(itertools.islice(mutations(tree), number, None))[1]()
    return ast.unparse(ast.fix_missing_locations(tree))


def mutants_of_room(room):
    """Return all mutants of a folder."""
    return [mutant for path in sorted((ROOT / 'xcit_dense' / room).rglob('*.py')) for mutant in mutants_of(path)]


def draw(count, seed):
    """Draw mutants: from every folder as many, at most 20, and the rest from all folders."""
    drawn, rest, generator = [], [], random.Random(seed)
    for room in ROOMS:
        every = mutants_of_room(room)
        generator.shuffle(every)
        drawn += every[:min(20, count // len(ROOMS))]
        rest += every[min(20, count // len(ROOMS)):]
    return sorted([*drawn, *generator.sample(rest, count - len(drawn))],
                  key=lambda mutant: (mutant['file'], mutant['line'], mutant['number']))
