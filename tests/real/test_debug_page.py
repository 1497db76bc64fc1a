"""The debugger's page in a real browser, by its keyboard alone."""

from urllib.parse import urlsplit

import pytest

from posttrain.data.edits import read_edits
from tests.debug.page_server import opened, served
from tests.real.browser import asked_for, browsing, complaints, find_browser
from tests.rollout.lock_world import arguments_of

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.xdist_group("debug_page"),
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed (`apt-get install chromium`)"),
]
CODES = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowRight": 39, "ArrowUp": 38}


@pytest.fixture
def server(tmp_path):
    (tmp_path / "served").mkdir()
    with served(tmp_path / "served") as server:
        yield server


@pytest.fixture
def page(server, tmp_path):
    with browsing(tmp_path / "browser") as page:
        for domain in ("Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        page.open(server.address)
        page.wait_for("document.querySelectorAll('#rows tr').length == 5", "the episodes")
        yield page


def press(page, *keys, ctrl=False):
    for key in keys:
        code = {"windowsVirtualKeyCode": CODES[key]} if key in CODES else {}
        text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
        for kind, more in (("keyDown", text), ("keyUp", {})):
            page.send("Input.dispatchKeyEvent", type=kind, key=key, modifiers=2 if ctrl else 0, **code, **more)


def fill(page, text):
    """Put a text in place of what the field in focus has."""
    page.run("document.activeElement.select()")
    page.send("Input.insertText", text=text)


def wait(page, script):
    page.wait_for(script, script)


def said(text):
    return f"document.querySelector('#said')?.textContent.includes({text!r})"


def test_an_episode_is_found_edited_forked_and_its_edit_saved_by_keyboard_alone(server, page, tmp_path):
    press(page, "/")
    wait(page, "document.activeElement.name == 'stage'")
    press(page, "Tab", "Tab", "Tab", "Tab", "Tab", "Tab")
    wait(page, "document.activeElement.name == 'text'")
    page.type("well")
    wait(page, "document.querySelectorAll('#rows tr').length == 1")
    fill(page, "")
    press(page, "Enter")
    wait(page, "document.querySelectorAll('#rows tr').length == 5")
    press(page, "Escape", "j", "ArrowDown", "j", "j", "j", "Enter")
    wait(page, "document.querySelector('#about')?.textContent.includes('episode 1 of train_policy')")

    press(page, "b")
    wait(page, "document.activeElement.name == 'condition'")
    page.type("tool try_code code=2")
    wait(page, "document.querySelector('.turn.here .at')?.textContent == '2'")
    press(page, "e")
    wait(page, "document.activeElement?.matches('#form select')")
    press(page, "Tab", "Tab")
    wait(page, "document.activeElement?.matches('#form .call textarea')")
    fill(page, '{"number": 1}')
    wait(page, "document.querySelector('#form .call .bad')?.textContent.includes(\"unknown argument 'number'\")")
    press(page, "Enter", ctrl=True)
    wait(page, "document.querySelector('[role=alert]')?.textContent.includes('unknown argument')")
    fill(page, arguments_of("123"))
    wait(page, "document.querySelector('#form .call .bad')?.textContent == ''")
    press(page, "Enter", ctrl=True)
    wait(page, "!document.querySelector('dialog').open && !!document.querySelector('.turn.here .edited')")

    press(page, "f")
    wait(page, "document.activeElement.name == 'num'")
    page.type("4")
    wait(page, said("4 of 4 succeed"))
    assert page.run("[...document.querySelectorAll('.branch')].map((one) => one.className)") == [
        "branch here",
        *["branch"] * 4,
    ]
    press(page, "w")
    wait(page, "document.activeElement.name == 'num'")
    page.type("4")
    wait(page, said("0 of 4 → 4 of 4 (+100 points"))
    [edit] = read_edits(tmp_path / "served/edits.parquet")
    assert edit.turn == 2

    press(page, "t")
    wait(page, "document.activeElement?.matches('.branch.here button')")
    press(page, "Tab", "Enter")
    wait(page, "document.querySelector('.branch.here')?.textContent.includes('from turn 2, edited')")
    press(page, "x")
    wait(page, "document.activeElement.name == 'nodes'")
    press(page, "Enter")
    wait(page, "document.querySelector('#compared .diverges')?.textContent.includes('turn 2, first difference')")
    press(page, "?")
    wait(page, "document.querySelectorAll('#legend kbd').length > 20")
    press(page, "Escape")
    assert [event for event in complaints(page) if "favicon" not in str(event)] == []
    assert {urlsplit(url).netloc for url in asked_for(page)} == {f"127.0.0.1:{server.port}"}
    assert page.run("location.href") == f"http://127.0.0.1:{server.port}/"


def test_a_group_opens_from_the_map_and_hostile_text_stays_text(page):
    press(page, "h")
    wait(page, "document.activeElement?.matches('#grid button')")
    press(page, "ArrowDown", "ArrowUp", "Enter")
    wait(page, "document.querySelectorAll('#compared .columns > div').length == 2")
    press(page, "l")
    wait(page, "document.activeElement.textContent == '5'")
    press(page, "j", "Enter")
    wait(page, "document.querySelector('#about')?.textContent.includes('episode 4 ')")
    assert "⟨U+001B⟩[2J⟨U+202E⟩" in page.run("document.querySelector('#look')?.textContent")
    assert page.run("document.title") == "Debugger"
    assert page.run("document.querySelectorAll('#look script').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_phone_and_a_desk_in_both_colour_schemes(page, scheme, width, tmp_path):
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.send("Emulation.setDeviceMetricsOverride", width=width, height=1200, deviceScaleFactor=1, mobile=width < 500)
    for keys, drawn in (("", "#rows tr"), ("h", "#grid button"), ("lj", "#rows tr")):
        press(page, *keys)
        wait(page, f"document.querySelectorAll('{drawn}').length > 0")
        assert page.run("document.documentElement.scrollWidth") <= width
    press(page, "Enter")
    wait(page, "document.querySelectorAll('.turn').length == 3")
    assert page.run("document.documentElement.scrollWidth") <= width
    red, green, blue = page.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (red + green + blue > 600) is (scheme == "light")
    page.screenshot(tmp_path / f"{scheme}-{width}.png")


def test_the_list_is_there_where_an_episode_was_open_at_the_start(server, tmp_path):
    opened(server)
    with browsing(tmp_path / "other") as page:
        page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        page.open(server.address)
        page.wait_for("document.querySelector('#about')?.textContent.includes('episode 1')", "the episode")
        press(page, "l")
        page.wait_for("document.querySelectorAll('#rows tr').length == 5", "the episodes")
