"""The look of all plots: colours, lines, axes and legends."""

#: Colours that people with any kind of colour vision can tell apart (the set of Okabe and Ito, without its yellow,
#: which is faint on white).
COLOURS = '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#7F7F7F'
#: Texts and lines that stand for the whole, and those that stay in the background.
INK, FAINT = '#222222', '#B0B0B0'


def new_figure(rows: int = 1, columns: int = 1, size=(5.4, 4.4)):
    """Return a figure of matplotlib and the list of its plots, row by row.

    Args:
        rows, columns: How many plots.
        size: Width and height of each, in inches.
    """
    from matplotlib.figure import Figure  # slow to import
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    plots = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in plots:
        axes.grid(color=FAINT, alpha=0.4, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[['top', 'right']].set_visible(False)
        axes.spines[['left', 'bottom']].set_color(FAINT)
        axes.tick_params(labelsize=9, color=FAINT, labelcolor=INK, which='both')
    return figure, plots


def name_axes(axes, title, x, y):
    """Write the title of a plot and what its axes show, with units."""
    axes.set_title(title, fontsize=11, color=INK, loc='left', pad=10)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def second_axis(axes, name, forward, back):
    """Add an axis at the top that counts in another unit, and return it.

    Args:
        axes: The plot.
        name: What it shows, with the unit.
        forward: Function from the values of the lower axis to those of this one.
        back: The reverse.
    """
    top = axes.secondary_xaxis('top', functions=(forward, back))
    top.set_xlabel(name, fontsize=10, color=INK)
    top.tick_params(labelsize=9, color=FAINT, labelcolor=INK, which='both')
    top.spines['top'].set_color(FAINT)
    return top


def line_style(place: int) -> dict:
    """Return colour and markers of a line by its place; colours that are used again have markers."""
    again, colour = divmod(place, len(COLOURS))
    return dict(color=COLOURS[colour], marker=(None, 'o', '^', 's')[again % 4], markevery=0.1, markersize=4)


def count_axis(axis):
    """Show whole numbers on an axis, with separators of thousands, and no more than fit."""
    from matplotlib.ticker import MaxNLocator
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(lambda value, _: f'{value:,.0f}')


def legend_below(axes, handles=None, columns: int = 3):
    """Place the legend below a plot, where it covers no line."""
    # a legend takes handles only as an argument that is not None
    axes.legend(handles=axes.lines if handles is None else handles, fontsize=9, labelcolor=INK, frameon=False,
                loc='upper center', bbox_to_anchor=(0.5, -0.14), ncols=columns)
