"""Makes README's pictures: screenshots of the report and of a comparison of commits, by a headless
Chromium.

    python -m benchmarks.screenshots BASELINE OTHER [OTHER …] [--browser /path/to/chrome]

Writes docs/images/report.png and docs/images/comparison.png, 1280 pixels wide.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from posttrain.report.comparison.page import comparison_page
from posttrain.report.comparison.runs import read_runs
from posttrain.report.comparison.settings import compare_settings

FOLDER, REPORT = Path("docs/images"), Path("reports/index.html")
WIDTH, HEIGHT = 1280, 900
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.screenshots", description=__doc__)
    parser.add_argument("commits", nargs="+", help="branches, tags or commits to compare; the first is the baseline")
    parser.add_argument("--browser", default=os.environ.get("CHROME") or next(filter(shutil.which, BROWSERS), None))
    given = parser.parse_args()
    if given.browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed: name a Chromium with --browser, or CHROME")
    if not REPORT.exists():
        raise SystemExit(f"{REPORT} is not here, so there is nothing to photograph: run `dvc repro report`")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "comparison.html"
        page.write_text(comparison_page(compare_settings(read_runs(Path(), given.commits))))
        for html, name in ((REPORT, "report"), (page, "comparison")):
            photograph(given.browser, html, FOLDER / f"{name}.png", profile=Path(scratch) / "profile")
            print(f"{FOLDER / name}.png")


def photograph(browser: str, html: Path, png: Path, *, profile: Path) -> None:
    """Take the first `HEIGHT` pixels of a page."""
    # no sandbox: the page is our own, and a container's kernel often forbids the sandbox
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--user-data-dir={profile}"]
    shot = [f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=4000", f"--screenshot={png.resolve()}"]
    subprocess.run([browser, *flags, *shot, html.resolve().as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
