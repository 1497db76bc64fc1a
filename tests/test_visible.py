"""Characters that cannot be seen, or act on a terminal, are spelt out; readable ones stay."""

import unicodedata

import pytest

from posttrain.runtime.control_chars import escape_control_chars, visible_line


@pytest.mark.parametrize("text", ["línea\n腾讯\tHK$ 😀 ☎️", "", "plain\n", "a\N{NO-BREAK SPACE}b", "e\u0301", "٣ שלום"])
def test_what_is_read_stays_as_it_is(text):
    assert escape_control_chars(text) == text


def test_characters_that_cannot_be_seen_or_turn_the_text_around_are_spelt_out():
    assert escape_control_chars("a\x00b\x1b[31m\u202egnp.exe") == "a⟨U+0000⟩b⟨U+001B⟩[31m⟨U+202E⟩gnp.exe"
    assert (
        escape_control_chars("pay\u200bpal \U000e0041\u2066\ufeff\ud800")
        == "pay⟨U+200B⟩pal ⟨U+E0041⟩⟨U+2066⟩⟨U+FEFF⟩⟨U+D800⟩"
    )


def test_no_control_and_no_invisible_format_character_is_left():
    """All of Unicode's controls and format characters but tab and newline; numbers' and music's
    signs of other scripts print something."""
    seen = {chr(code) for code in range(0x110000) if escape_control_chars(chr(code)) == chr(code)}
    unseen = {
        character
        for character in map(chr, range(0x110000))
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    }
    assert seen & unseen == {"\t", "\n"}
    bidirectional = {*"\u061c\u200e\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
    assert not seen & bidirectional
    assert not seen & {*"\u200b\u200c\u200d\u2060\ufeff", *map(chr, range(0xE0000, 0xE0080))}


def test_line_ends_of_windows_are_line_ends_and_a_line_has_none():
    assert escape_control_chars("a\r\nb\rc") == "a\nb⟨U+000D⟩c"
    assert visible_line("a\r\nb") == "a⟨U+000A⟩b"
