"""Companies of the market, their searches, and the splits that ask about them."""

from collections import Counter

import pytest

from posttrain.worlds.stocks.codes import canonical
from posttrain.worlds.stocks.market import Market
from posttrain.worlds.tools import ToolError

PARTS = ("sft", "rl", "dev", "test")


@pytest.fixture(scope="module")
def market() -> Market:
    return Market(7)


def first(market, *, a, hk):
    return next(company for company in market.companies if (company.a is not None, company.hk is not None) == (a, hk))


def test_the_markets_are_as_large_as_the_real_ones(market):
    assert len(market.companies) == 7600
    assert sum(company.a is not None for company in market.companies) == 5300
    assert sum(company.hk is not None for company in market.companies) == 2600
    assert sum(company.is_dual_listed for company in market.companies) == 300


def test_every_code_is_unique_canonical_and_leads_back_to_its_listing(market):
    codes = [listing.code for company in market.companies for listing in company.listings]
    assert len(set(codes)) == 7900
    for company in market.companies[:300]:
        for listing in company.listings:
            assert canonical(listing.code, listing.market) == listing.code
            assert market.look_up(listing.code) == (company, listing)


def test_one_seed_is_one_market_and_another_seed_another(market):
    again, other = Market(7), Market(8)
    assert again.companies == market.companies
    assert [again.companies_of(part) for part in PARTS] == [market.companies_of(part) for part in PARTS]
    code = market.companies[0].listings[0].code
    assert (again.bars(code).close_cents_T == market.bars(code).close_cents_T).all()
    assert other.companies != market.companies


def test_the_splits_share_no_company_and_leave_none_out(market):
    ids = [company.company_id for part in PARTS for company in market.companies_of(part)]
    assert len(ids) == len(set(ids)) == 7600
    assert market.companies_of("test_paraphrase") is market.companies_of("test")


def test_companies_of_both_markets_are_spread_over_the_splits_in_the_same_shares(market):
    # 300 companies in both markets: 50 % 150, 25 % 75, 8 % 24, 17 % 51.
    assert [sum(company.is_dual_listed for company in market.companies_of(part)) for part in PARTS] == [150, 75, 24, 51]
    # 7,600 in all, 5,000 mainland only (2500, 1250, 400, 850) and 2,300 Hong Kong only (1150, 575,
    # 184, 391).
    assert [len(market.companies_of(part)) for part in PARTS] == [3800, 1900, 608, 1292]


def test_a_company_is_found_by_each_of_its_names_on_each_of_its_markets(market):
    company = first(market, a=True, hk=True)
    for name in (company.name_zh, company.name_en, *company.aliases, company.name_en.upper(), f" {company.name_zh} "):
        assert market.find(name, "a") == [company]
        assert market.find(name, "hk") == [company]


def test_a_company_is_not_found_on_the_market_where_it_is_not_listed(market):
    company = first(market, a=False, hk=True)
    assert market.find(company.name_zh, "hk") == [company]
    assert market.find(company.name_zh, "a") == []


def test_part_of_a_name_finds_a_few_candidates(market):
    found = market.find("银行", "a")
    assert len(found) == 5
    assert Counter("银行" in company.name_zh and company.a is not None for company in found) == {True: 5}


@pytest.mark.parametrize("nothing", ["", "   ", "不存在公司", "No Such Company"])
def test_a_name_that_is_nobodys_finds_nothing(market, nothing):
    assert market.find(nothing, "a") == []


def test_a_code_that_is_not_listed_is_the_agents_mistake(market):
    unlisted = next(
        f"60{number:04d}.SH"
        for number in range(10_000)
        if f"60{number:04d}.SH" not in {c.a.code for c in market.companies if c.a}
    )
    with pytest.raises(ToolError, match=f"no A-share company has the code {unlisted}"):
        market.look_up(unlisted)
