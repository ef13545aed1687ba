"""A plot of accuracy over time as SVG: a panel for each straggler, a curve for each contestant at its best learning rate."""
import html
import statistics

COLOURS = ["#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#d62728", "#8c564b", "#e377c2", "#7f7f7f", "#17becf"]
WIDTH, HEIGHT, MARGIN, LEGEND = 360, 220, 40, 20


def median_curve(runs, points=60):
    """[(seconds, median over the runs of the newest accuracy by then)], up to the median run's end."""
    end = statistics.median(run["seconds"] for run in runs)
    curve = []
    for i in range(1, points + 1):
        now = end * i / points
        newest = [[accuracy for seconds, accuracy in run["evaluations"] if seconds <= now] for run in runs]
        if all(newest):
            curve.append((now, statistics.median(values[-1] for values in newest)))
    return curve


def text(x, y, what, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(what)}</text>'


def panel(left, top, title, curves, colours):
    """`curves`: {contestant: [(seconds, accuracy)]}."""
    right = max((points[-1][0] for points in curves.values() if points), default=1)
    low = min((accuracy for points in curves.values() for _, accuracy in points), default=0)

    def place(point):
        return (left + WIDTH * point[0] / right, top + HEIGHT * (1 - (point[1] - low) / max(1 - low, 1e-9)))

    parts = [f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ddd"/>',
             text(left + WIDTH / 2, top - 6, title, "middle"), text(left, top + HEIGHT + 14, "0"),
             text(left + WIDTH, top + HEIGHT + 14, f"{right:.0f} s", "end"), text(left - 4, top + 10, "1", "end"),
             text(left - 4, top + HEIGHT, f"{low:.2f}", "end")]
    for name, points in curves.items():
        places = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in points)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
    return parts


def svg(panels):
    """`panels`: {title: {contestant: [(seconds, accuracy)]}}."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width, top = MARGIN + len(panels) * (WIDTH + MARGIN), LEGEND * (1 + (len(names) + 2) // 3) + MARGIN
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + HEIGHT + MARGIN}" font-family="sans-serif" '
             'font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for i, name in enumerate(names):
        x, y = MARGIN + i % 3 * (width - MARGIN) / 3, LEGEND * (1 + i // 3)
        parts += [f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 24:.1f}" y2="{y - 4}" stroke="{colours[name]}" stroke-width="2"/>',
                  text(x + 28, y, name)]
    for i, (title, curves) in enumerate(panels.items()):
        parts += panel(MARGIN + i * (WIDTH + MARGIN), top, title, curves, colours)
    return "\n".join([*parts, "</svg>"]) + "\n"
