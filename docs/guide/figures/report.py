"""Screenshots of a release's report, beside this file.

    python3 docs/guide/figures/report.py RELEASE

It needs Chromium (`chromium`, from Debian's packages, or the path in the variable CHROMIUM).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SECOND_PART = "<style>body > header, nav, main > section:first-child { display: none }</style>"
PHONE = (
    "<style>:root {{ color-scheme: dark }} body {{ margin: 0 }}</style>"
    '<iframe src="{}" width="390" height="800" style="border: 0"></iframe>'
)


def screenshot(page: Path, name: str, width: int, height: int, *, dark: bool = False) -> None:
    command = [
        os.environ.get("CHROMIUM", "chromium"),
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--window-size={width},{height}",
        f"--screenshot={HERE / name}.png",
        page.as_uri(),
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    report = (Path(sys.argv[1]) / "report.html").resolve()
    screenshot(report, "report", 1180, 940)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.html"
        said = report.read_text("utf-8").replace("</head>", SECOND_PART + "</head>")
        part.write_text(said, "utf-8")
        screenshot(part, "report-columns", 1180, 780)
        # No window of a browser is as narrow as a phone, but a frame is.
        frame = Path(folder) / "frame.html"
        frame.write_text(PHONE.format(report.as_uri()), "utf-8")
        screenshot(frame, "report-phone", 390, 800, dark=True)
