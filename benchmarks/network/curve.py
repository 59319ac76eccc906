"""Line chart of Recall@1 over label noise, as SVG."""

from collections.abc import Mapping

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 50, 190, 20, 45
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw_curve(lines: Mapping[str, Mapping[float, float]], *, title: str) -> str:
    """A line for each name: Recall@1 in % by the share of wrong labels (0..1)."""
    values = [value for line in lines.values() for value in line.values()]
    shares = sorted({share for line in lines.values() for share in line})
    low, high = 5 * (min(values) // 5), 5 * (max(values) // 5 + 1)

    def place(share: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (share - shares[0]) / max(shares[-1] - shares[0], 1e-9)
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    def write(x: float, y: float, text: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{text}</text>'

    parts = [write(LEFT, 14, title, 'font-weight="bold"')]
    for value in range(int(low), int(high) + 1, 5):
        y = place(shares[0], value)[1]
        parts.append(f'<path d="M{LEFT} {y:.0f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(write(LEFT - 8, y + 4, str(value), 'text-anchor="end"'))
    for share in shares:
        parts.append(write(place(share, low)[0], HEIGHT - 25, f"{100 * share:.0f} %", 'text-anchor="middle"'))
    parts.append(write(LEFT, HEIGHT - 6, "wrong labels, at random"))
    for number, (name, line) in enumerate(sorted(lines.items(), key=lambda one: -one[1][max(one[1])])):
        colour, points = COLOURS[number % len(COLOURS)], [place(*one) for one in sorted(line.items())]
        steps = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        parts.append(f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(write(WIDTH - RIGHT + 12, TOP + 30 + 20 * number, name, f'fill="{colour}"'))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([start, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
