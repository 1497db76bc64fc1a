"""The wording of questions: each has a plain form, used in all splits but one, and another that
only test_paraphrase uses.

Sentences are short and share their frames on purpose: a model from scratch learns a few hundred
words, and what is tested is whether it picks the market and the tool, not whether it parses prose.
"""

from collections.abc import Sequence

from posttrain.types import Split
from posttrain.worlds.stocks.codes import MarketName

# field | zh | en | zh and en of test_paraphrase
_FIELD_TEXT = """
price      | 现价       | price             | 最新报价       | latest quote
open       | 开盘价     | open              | 首笔成交价     | first trade
high       | 最高价     | high              | 盘中顶点       | day's peak
low        | 最低价     | low               | 盘中谷底       | day's trough
prev_close | 昨收价     | previous close    | 前一日收市价   | yesterday's final price
change_pct | 涨跌幅     | percent change    | 升跌百分比     | move in percent
volume     | 成交量     | volume            | 买卖股数       | shares traded
turnover   | 成交额     | turnover          | 买卖金额       | money traded
pe         | 市盈率     | P/E               | 本益比         | price-earnings multiple
pb         | 市净率     | P/B               | 股价净值比     | price-book multiple
dif        | MACD的DIF  | MACD DIF          | 异同线DIF值    | DIF line in MACD
dea        | MACD的DEA  | MACD DEA          | 异同线DEA值    | DEA line in MACD
macd       | MACD柱     | MACD histogram    | 异同线柱值     | bar height in MACD
upper      | 布林上轨   | Bollinger upper   | 布林线顶轨     | top Bollinger band
lower      | 布林下轨   | Bollinger lower   | 布林线底轨     | bottom Bollinger band
ma5        | 5日均线    | MA5               | MA5数值        | 5-day MA
ma10       | 10日均线   | MA10              | MA10数值       | 10-day MA
ma20       | 20日均线   | MA20              | MA20数值       | 20-day MA
ma60       | 60日均线   | MA60              | MA60数值       | 60-day MA
day_open   | 开盘价     | open              | 首笔成交价     | first trade
day_high   | 最高价     | high              | 盘中顶点       | day's peak
day_low    | 最低价     | low               | 盘中谷底       | day's trough
day_close  | 收盘价     | close             | 收市价         | final price
"""
# The same for what a tool is good for, without its name.
_PURPOSE_TEXT = """
pe         | 价格是盈利几倍   | price over earnings      | 每元盈利的价钱   | cost of one unit of profit
pb         | 价格是净资产几倍 | price over book value    | 每元净资产的价钱 | cost of one unit of net assets
dif        | 快慢均线差       | fast minus slow average  | 短长期均值之差   | gap of short and long averages
dea        | 动量信号线       | momentum signal line     | 动能平滑线       | smoothed momentum
macd       | 动量柱           | momentum histogram       | 动能柱高         | momentum bar
upper      | 波动通道上沿     | upper edge of the band   | 波幅区间的顶     | ceiling of the usual range
lower      | 波动通道下沿     | lower edge of the band   | 波幅区间的底     | floor of the usual range
ma5        | 近5日平均收盘    | 5-day average close      | 一周收市均值     | mean close of 5 days
ma10       | 近10日平均收盘   | 10-day average close     | 两周收市均值     | mean close of 10 days
ma20       | 近20日平均收盘   | 20-day average close     | 四周收市均值     | mean close of 20 days
ma60       | 近60日平均收盘   | 60-day average close     | 一季收市均值     | mean close of 60 days
mean5      | 近5日平均成交    | 5-day average volume     | 一周日均股数     | mean shares a day over 5 days
mean20     | 近20日平均成交   | 20-day average volume    | 四周日均股数     | mean shares a day over 20 days
trend      | 量能方向         | direction of volume      | 交投冷热走向     | drift of trading activity
lot_size   | 一手股数         | shares in one lot        | 最小买入股数     | smallest order in shares
"""
# Sentences by family and language, of one or more lines; those with a star are test_paraphrase's.
_FRAME_TEXT = """
field      zh   {x}的{f}? ~ {x}{f}多少? ~ 查{x}的{f} ~ 请问{x}{f}
field      zh * 我想知道{x}的{f} ~ 劳驾,{x},{f}报一下
field      en   {f} of {x}? ~ Get {f} of {x} ~ {x}: {f}? ~ What is the {f} of {x}?
field      en * I want to know, for {x}, the {f} ~ Report on {x}, only {f}
bar        zh   {x}在{d}的{f}? ~ 查{x},{d},{f}
bar        zh * {d}那天,{x},{f}报一下
bar        en   {f} of {x} on {d}? ~ On {d}, {f} of {x}?
bar        en * Going back to {d}, report {f} for {x}
higher     zh   {x}和{y}哪个{f}高? ~ {x}、{y}谁{f}更高?
higher     zh * 比一比{x}跟{y},{f}大的是?
higher     en   Higher {f}: {x} or {y}? ~ Which has the higher {f}, {x} or {y}?
higher     en * Compare {x} with {y}: whose {f} is larger?
lower      zh   {x}和{y}哪个{f}低? ~ {x}、{y}谁{f}更低?
lower      zh * 比一比{x}跟{y},{f}小的是?
lower      en   Lower {f}: {x} or {y}? ~ Which has the lower {f}, {x} or {y}?
lower      en * Compare {x} with {y}: whose {f} is smaller?
second     zh   {x}中{f}第二高的? ~ {x},{f}排第二的?
second     zh * 把{x}按{f}从大到小排,次席是?
second     en   Second highest {f} of {x}? ~ Among {x}, second highest {f}?
second     en * Sort {x} by {f}, largest first: runner-up?
difference zh   {x}比{y}{f}高多少? ~ {x}{f}减{y}{f}?
difference zh * 从{x}的{f}里扣掉{y}的,剩多少?
difference en   {f} of {x} minus {f} of {y}? ~ How far is {f} of {x} above {y}?
difference en * Take {f} of {y} away from that of {x}: result?
pair       zh   {x}的A股和港股哪个{f}高? ~ {x}两地{f}谁高?
pair       zh * {x}内地与香港两边,{f}大的是?
pair       en   Higher {f} for {x}: A-share or Hong Kong? ~ Does {x} have the higher {f} in A or HK?
pair       en * Both listings of {x}: whose {f} is larger?
given      zh   {x}{f}是{v},{f}多少? ~ 已知{x}{f}{v},{f}?
given      zh * 手上的数据:{x},{f}为{v}。复述{f}
given      en   {x} has {f} {v}. Its {f}? ~ Given {f} {v} for {x}, what is the {f}?
given      en * My sheet says {v} as {f} for {x}. Repeat {f}
given_two  zh   {x}{g}{w},{f}{v},{f}? ~ {x}:{f}{v},{g}{w}。{f}?
given_two  zh * 手上的数据:{x},{g}为{w},{f}为{v}。复述{f}
given_two  en   {x}: {g} {w}, {f} {v}. The {f}? ~ {x}: {f} {v}, {g} {w}. The {f}?
given_two  en * My sheet on {x} says {v} as {f}, {w} as {g}. Repeat {f}
ending     zh   {ending}
ending     zh * {ending}
ending     en   {ending}
ending     en * {ending}
stop       zh   不用查{x}了,谢谢 ~ {x}先不看了 ~ 够了,{x}不必再查
stop       zh   {x}不查了 ~ 取消查{x} ~ {x}的数据已经有了 ~ 刚问的{x}作废
stop       zh * {x}就算了吧 ~ 关于{x},到此为止
stop       en   No need to check {x}, thanks ~ Never mind {x} ~ Stop, {x} is settled
stop       en   Cancel {x} ~ I already have {x} ~ {x} is not needed any more ~ No more on {x}, please
stop       en * Leave {x} alone now ~ Forget about {x}, all good
"""


def _table(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return {name: {"zh": (zh, zh_other), "en": (en, en_other)} for name, zh, en, zh_other, en_other in rows}


def _sentences(text: str) -> dict[tuple[str, str], tuple[Sequence[str], Sequence[str]]]:
    found: dict[tuple[str, str, bool], list[str]] = {}
    for line in text.strip().splitlines():
        family, language, sentences = line.split(maxsplit=2)
        is_paraphrase = sentences.startswith("* ")
        found.setdefault((family, language, is_paraphrase), []).extend(sentences.removeprefix("* ").split(" ~ "))
    return {
        (family, language): (found[family, language, False], found[family, language, True])
        for family, language, _ in found
    }


# Every entry of the tables below is a pair: the plain form, and the one of test_paraphrase.
FIELD_WORDS = _table(_FIELD_TEXT)  # by field and language
PURPOSE_WORDS = _table(_PURPOSE_TEXT)
FRAMES = _sentences(_FRAME_TEXT)  # by family and language

# How a market is said: outright, or by its exchange or currency. {n} is the company's name.
CUES: dict[tuple[str, str, MarketName], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("cue", "zh", "a"): (("A股{n}",), ("内地上市的{n}",)),
    ("cue", "zh", "hk"): (("港股{n}",), ("香港上市的{n}",)),
    ("cue", "en", "a"): (("A-share {n}",), ("{n} (mainland stock)",)),
    ("cue", "en", "hk"): (("Hong Kong {n}",), ("{n} (HK stock)",)),
    ("indirect", "zh", "a"): (("沪深{n}", "人民币计价的{n}"), ("内地交易所的{n}", "以CNY交易的{n}")),
    ("indirect", "zh", "hk"): (("港交所{n}", "港元计价的{n}"), ("联交所的{n}", "以HKD交易的{n}")),
    ("indirect", "en", "a"): (
        ("CNY-priced {n}", "Shanghai-Shenzhen {n}"),
        ("{n} paid in yuan", "{n} on a mainland exchange"),
    ),
    ("indirect", "en", "hk"): (("HKD-priced {n}", "HKEX {n}"), ("{n} paid in HK dollars", "{n} on the HK exchange")),
}  # fmt: skip
BOTH: dict[str, tuple[str, str]] = {  # of a company in both markets, which leaves open which is meant
    "zh": ("两地上市的{n}", "A+H公司{n}"),
    "en": ("dual-listed {n}", "{n}, which both markets list"),
}
REPLIES: dict[tuple[str, str], tuple[str, str]] = {  # the user's answer to `ASK: market`
    ("zh", "a"): ("A股", "看内地的"),
    ("zh", "hk"): ("港股", "看香港的"),
    ("en", "a"): ("A-share", "the mainland one"),
    ("en", "hk"): ("Hong Kong", "the HK one"),
}
# A conversation that ends without a company: each opening with each closing, dealt out to the
# splits by their place.
_OPENINGS: dict[str, tuple[str, str]] = {
    "zh": ("好的/谢谢/明白了/可以了/知道了/行/辛苦了/收到", "了解/妥了/多谢帮忙"),
    "en": ("Thanks/OK/Fine/Great/I see/Good/Understood/All right", "Cheers/Brilliant/Noted"),
}
_CLOSINGS: dict[str, tuple[str, str]] = {
    "zh": (
        "不用查了/没别的事了/先这样/今天就到这/不需要行情了/下次再问/问题解决了/不看股票了",
        "告辞/就此打住/改天再聊",
    ),
    "en": (
        "no more questions/that is all/stop here/nothing else/no quote needed/ask you later/I have it/done for today",
        "goodbye/leave it there/talk another time",
    ),
}
_ENDING_SPLITS: tuple[Split, ...] = ("sft", "rl", "dev", "test")


def endings(split: Split, language: str) -> list[str]:
    """The texts that end a conversation without naming a company, no two splits sharing one."""
    openings, closings = (part[language][split == "test_paraphrase"].split("/") for part in (_OPENINGS, _CLOSINGS))
    comma = "," if language == "zh" else ", "
    return [
        f"{opening}{comma}{closing}"
        for row, opening in enumerate(openings)
        for column, closing in enumerate(closings)
        if split == "test_paraphrase" or _ENDING_SPLITS[(row + column) % len(_ENDING_SPLITS)] == split
    ]
