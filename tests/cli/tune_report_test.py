"""The page of `fastpath tune --report` in a browser, as on a phone. Skipped where there is no Chromium."""
import os
import pathlib
import re
import shutil
import struct
import subprocess
import unittest
import zlib

import support

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTH, HEIGHT = 390, 844
LIGHT = {"reference": (0xB3, 0x4A, 0x00), "kernel": (0x00, 0x63, 0x9C), "window": (0xE3, 0xF0, 0xF8)}
DARK = {"reference": (0xF0, 0x93, 0x4E), "kernel": (0x58, 0xB4, 0xEE), "window": (0x1D, 0x30, 0x40)}


def read_png(path):
    """Width, height and the rows of an image with 8 bits a channel, as bytes of RGB."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at:at + 8])
        chunk = content[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", chunk[:10])
            assert depth == 8 and colour in (2, 6), (depth, colour)
        packed += chunk if kind == b"IDAT" else b""
        at += 12 + size
    data, n, rows = zlib.decompress(packed), 3 if colour == 2 else 4, []
    before = bytearray(width * n)
    for y in range(height):
        start = y * (width * n + 1)
        kind, row = data[start], bytearray(data[start + 1:start + 1 + width * n])
        for i in range(len(row)):
            left, up, corner = (row[i - n] if i >= n else 0), before[i], (before[i - n] if i >= n else 0)
            if kind == 1:
                row[i] = (row[i] + left) & 255
            elif kind == 2:
                row[i] = (row[i] + up) & 255
            elif kind == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif kind == 4:
                guess = left + up - corner
                nearest = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
                row[i] = (row[i] + nearest) & 255
        rows.append(bytes(row) if n == 3 else b"".join(bytes(row[i:i + 3]) for i in range(0, len(row), 4)))
        before = row
    return width, height, rows


def count(rows, colour):
    return sum(row[i:i + 3] == bytes(colour) for row in rows for i in range(0, len(row), 3))


@unittest.skipIf(BROWSER is None, "no chromium here: scripts/install_deps.sh ci installs it")
class TuneReport(support.ProgramTest):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "page.html"
        subprocess.run([os.environ["FASTPATH_TEST_REPORT"], "--gtest_filter=TuningReport.IsWrittenToAFile"], check=True,
                       env=self.env | {"FASTPATH_TEST_PAGE": str(self.page)}, stdout=subprocess.DEVNULL)

    def browse(self, page, *options):
        process = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", "--force-device-scale-factor=1", f"--window-size={WIDTH},{HEIGHT}",
             f"--user-data-dir={self.folder / 'browser'}", *options, page.as_uri()],
            env=self.env, cwd=self.folder, capture_output=True, timeout=120, check=False)
        self.assertEqual(process.returncode, 0, process.stderr.decode())
        return process.stdout.decode()

    def screenshot(self, page, *options):
        picture = self.folder / "page.png"
        self.browse(page, f"--screenshot={picture}", *options)
        width, height, rows = read_png(picture)
        self.assertEqual((width, height), (WIDTH, HEIGHT))
        return rows

    def testShowsBothCurvesOnAPhone(self):
        for colours, options in ((LIGHT, ()), (DARK, ("--blink-settings=preferredColorScheme=0",))):
            rows = self.screenshot(self.page, *options)
            for name, colour in colours.items():
                self.assertGreater(count(rows, colour), 50, name)

    def testNothingIsWiderThanThePhoneAndNothingRuns(self):
        probe = self.folder / "probe.html"
        frame = f'<iframe id="f" src="page.html" style="width:{WIDTH}px;height:{HEIGHT}px;border:0"></iframe>'
        script = ("<script>onload = () => { const d = document.getElementById('f').contentDocument;"
                  "document.title = [d.documentElement.scrollWidth, d.documentElement.clientWidth, d.scripts.length,"
                  "d.images.length, d.title].join('|'); }</script>")
        probe.write_text(f"<!doctype html><title>no answer</title>{script}{frame}")
        document = self.browse(probe, "--dump-dom", "--allow-file-access-from-files")
        width, room, scripts, images, title = re.search("<title>(.*?)</title>", document)[1].split("|")
        self.assertEqual(int(room), WIDTH)
        self.assertLessEqual(int(width), WIDTH)
        self.assertEqual((scripts, images), ("0", "0"))
        self.assertEqual(title, "When fast kernels are faster")


support.main()
