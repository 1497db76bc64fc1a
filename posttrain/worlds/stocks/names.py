"""The names of the simulated companies.

A brand is two of a hundred common words (松 Pine + 鹤 Crane); in Chinese an industry follows:
松鹤银行, PineCrane. Common words on purpose: a small model copies an unseen pair of words it knows,
and fails on an unseen string of syllables; written as one word, because a space between them hides
the first from the model when it writes the second. One brand is one company, so short forms are
unique as well. All is invented; brands that are real ones or ordinary words are left out as far as
they were known.
"""

import random
from dataclasses import dataclass

_BRAND_TEXT = """
东East 西West 南South 北North 山Hill 海Sea 江River 湖Lake 云Cloud 星Star 金Gold 玉Jade 石Stone
木Wood 水Water 火Fire 土Earth 风Wind 雨Rain
雪Snow 春Spring 夏Summer 秋Autumn 冬Winter 花Flower 草Grass 松Pine 竹Bamboo 梅Plum 兰Orchid 马Horse
龙Dragon 虎Tiger 鹰Eagle 鹤Crane 鹿Deer
牛Ox 羊Sheep 鱼Fish 鸟Bird 红Red 绿Green 蓝Blue 白White 黑Black 紫Purple 光Light 清Clear 远Far
安Peace 福Luck 喜Joy 美Beauty 城City 门Gate
桥Bridge 路Road 田Field 林Forest 泉Brook 岛Island 塔Tower 船Ship 轮Wheel 灯Lamp 钟Bell 书Book
琴Harp 画Picture 茶Tea 米Rice 盐Salt 丝Silk
棉Cotton 铁Iron 铜Copper 宝Gem 珠Pearl 冠Crown 王King 德Noble 诚Honest 谷Valley 河Stream 沙Sand
冰Ice 雷Thunder 虹Rainbow 晨Dawn 叶Leaf
根Root 果Fruit 桃Peach 莲Lotus 麦Wheat 蜂Bee 狮Lion 象Elephant 燕Swallow
"""
_INDUSTRY_TEXT = """
银行Bank 汽车Motor 电力Power 食品Food 医药Pharma 科技Tech 地产Land 能源Energy 航空Air 物流Freight
传媒Media 保险Insurance 建材Cement
化工Chemical 家电Appliance 软件Software 通信Telecom 酒业Wine 旅游Travel 纸业Paper 矿业Mining
农业Farm
"""
# Real brands, provinces and ordinary words that two brand words happen to make.
_TAKEN_TEXT = """
东山 东风 东海 东湖 东江 东安 东光 东北 东南 东西 西北 西南 西山 西安 南山 南海 南北 北海 江山 江河
江南 江西 山东 山西 山水 山鹰 湖南 湖北
河南 河北 海南 云南 云海 海马 海王 海星 海光 海德 海林 金山 金龙 金马 金桥 金田 金诚 金谷 金牛 金鹰
金风 金王 金石 玉龙 玉林 黑石 黑龙 黑白
白云 白马 白雪 红牛 红星 红塔 红茶 绿城 绿茶 绿岛 蓝光 蓝星 蓝海 宝马 宝石 宝城 福田 福星 福安 美林
龙江 龙泉 龙王 铁龙 铁路 铜冠 冠城 泉林
春秋 春风 石林 松江 钟山 莲花 梅花 桃花 雪花 雪龙 兰石 清泉 清风 水星 水果 星光 星河 火星 风水 风光
马路 花王 花草 德林 安德 光远 清远 路桥
米兰 书画 石桥 沙河 美光
"""

# Pairs (Chinese, English): one Han character a brand word, two an industry.
BRAND_WORDS: tuple[tuple[str, str], ...] = tuple((entry[:1], entry[1:]) for entry in _BRAND_TEXT.split())
INDUSTRIES: tuple[tuple[str, str], ...] = tuple((entry[:2], entry[2:]) for entry in _INDUSTRY_TEXT.split())
_TAKEN = frozenset(_TAKEN_TEXT.split())


@dataclass(frozen=True, slots=True)
class CompanyName:
    """A company's names: `zh` 松鹤银行, `en` PineCrane, and its aliases 松鹤 and PineCrane Bank."""

    zh: str
    en: str
    aliases: tuple[str, ...]
    industry: str


def company_names(count: int, *, seed: int) -> list[CompanyName]:
    """`count` names of which no two share a form. Raises ValueError where brands are too few."""
    brands = [
        (first, second)
        for first in BRAND_WORDS
        for second in BRAND_WORDS
        if first != second and first[0] + second[0] not in _TAKEN
    ]
    if count > len(brands):
        raise ValueError(f"{count} companies need as many brands, and the words make {len(brands)}")
    draw = random.Random(f"{seed}/names")
    return [_name(first, second, draw.choice(INDUSTRIES)) for first, second in draw.sample(brands, count)]


def name_key(text: str) -> str:
    """The form in which names are compared: ` pine  Crane` is `pinecrane`."""
    return "".join(text.split()).casefold()


def _name(first: tuple[str, str], second: tuple[str, str], industry: tuple[str, str]) -> CompanyName:
    short_zh = first[0] + second[0]
    name_en = first[1] + second[1]
    return CompanyName(
        zh=short_zh + industry[0], en=name_en, aliases=(short_zh, f"{name_en} {industry[1]}"), industry=industry[0]
    )
