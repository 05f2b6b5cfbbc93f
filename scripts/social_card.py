"""Makes docs/images/social-card.png: what is shown where a link to the site is shared.

Usage: python scripts/social_card.py. Needs pillow and the DejaVu fonts.
"""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIZE = (1200, 630)
FONTS = Path("/usr/share/fonts/truetype/dejavu")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "social-card.png"
STAIRS = [(2.5, 20), (7.5, 20), (7.5, 15), (12.5, 15), (12.5, 10), (17.5, 10), (17.5, 4.5), (21.5, 4.5)]
TICK = [(2.5, 9.5), (5.5, 12.5), (11, 5)]
LINES = [
    ("error  LOOP01 stale-gradients", "#ff7b72"),
    ("  train.py:18", "#e6edf3"),
    ("    loss.backward()", "#79c0ff"),
    ("  fix  Call optimizer.zero_grad() before this backward pass", "#8b949e"),
]


def main() -> None:
    """Draw it in the colours of the site."""
    image = Image.new("RGB", SIZE, "#0d1117")
    draw = ImageDraw.Draw(image)
    for points, colour in ((STAIRS, "#58a6ff"), (TICK, "#3fb950")):  # the mark, ten times as large
        draw.line([(80 + 5 * x, 70 + 5 * y) for x, y in points], fill=colour, width=13, joint="curve")
    draw.text(
        (220, 76), "truestep", font=ImageFont.truetype(FONTS / "DejaVuSans-Bold.ttf", 84), fill="#e6edf3"
    )
    text = "Find the bugs in your PyTorch\ntraining script by running it."
    draw.text(
        (80, 225), text, font=ImageFont.truetype(FONTS / "DejaVuSans.ttf", 46), fill="#e6edf3", spacing=14
    )
    draw.rounded_rectangle((80, 390, 1120, 580), radius=14, fill="#151b23", outline="#30363d", width=2)
    mono = ImageFont.truetype(FONTS / "DejaVuSansMono.ttf", 26)
    for index, (line, colour) in enumerate(LINES):
        draw.text((104, 406 + 40 * index), line, font=mono, fill=colour)
    image.save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
