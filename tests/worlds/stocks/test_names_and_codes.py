"""Names and codes of companies."""

import re

import pytest

from posttrain.worlds.stocks.codes import canonical
from posttrain.worlds.stocks.names import BRAND_WORDS, INDUSTRIES, company_names, name_key
from posttrain.worlds.tools import ToolError


def test_every_brand_word_stands_for_one_word_of_the_other_language():
    assert len({zh for zh, _ in BRAND_WORDS}) == len({en for _, en in BRAND_WORDS}) == len(BRAND_WORDS) == 99
    assert all(len(zh) == 1 and en.isascii() for zh, en in BRAND_WORDS)


def test_a_name_is_four_characters_or_two_words_in_one_with_a_short_and_a_long_form():
    industry_words = dict(INDUSTRIES)
    for name in company_names(200, seed=1):
        assert len(name.zh) == 4
        assert re.fullmatch(r"([A-Z][a-z]+){2}", name.en)
        assert name.zh == name.aliases[0] + name.industry
        assert name.aliases[1] == f"{name.en} {industry_words[name.industry]}"


def test_no_two_companies_share_any_form_of_a_name():
    names = company_names(7600, seed=7)
    forms = [name_key(form) for name in names for form in (name.zh, name.en, *name.aliases)]
    assert len(set(forms)) == 4 * 7600


@pytest.mark.parametrize(
    "written",
    ["600519", "sh600519", "SH600519", "600519.SH", "600519.sh", "600519.SS", "sh.600519", " 600519 ", "６００５１９"],
)
def test_a_mainland_code_is_read_in_all_forms_people_write(written):
    assert canonical(written, "a") == "600519.SH"


@pytest.mark.parametrize("written", ["00700", "700", "0700.HK", "700.hk", "HK00700", "hk700", "00700.HK", "0700"])
def test_a_hong_kong_code_is_read_in_all_forms_people_write(written):
    assert canonical(written, "hk") == "00700.HK"


def test_the_other_markets_code_is_refused_by_name():
    with pytest.raises(ToolError, match=r"^00700\.HK is a Hong Kong code; this tool takes A-share codes$"):
        canonical("0700.HK", "a")
    with pytest.raises(ToolError, match=r"^600519\.SH is an A-share code; this tool takes Hong Kong codes$"):
        canonical("sh600519", "hk")


@pytest.mark.parametrize(
    "written",
    ["", "tencent", "1234567", "600519.SZ", "600519.HK", "sz700", "sh600519.SZ", "700000", "6005 19x", "-700", "٧٠٠"],
)
def test_what_is_no_code_or_contradicts_itself_is_refused(written):
    with pytest.raises(ToolError, match="is not a stock code"):
        canonical(written, "a")
