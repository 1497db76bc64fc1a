"""Questions as people type them: the split `test_noisy` is asked in chat words, misspelt, or with
the name of a value in the other language. Names, codes and numbers stay as they are."""

import random

_CHATTY = {
    "en": ("hey, {text} thx", "{text} asap pls", "yo quick one: {text}", "um {text} ty!!"),
    "zh": ("诶,{text}呗", "{text},急急急", "那个,{text}哈,谢啦", "亲,{text}~"),
}
_SOUNDS_LIKE = dict(zip("价率量额收盘轨线均高低净盈方数", "阶律亮俄受判鬼现君搞底静赢芳树", strict=True))


def chatty(text: str, language: str, rng: random.Random) -> str:
    return rng.choice(_CHATTY[language]).format(text=text)


def misspelt(words: str, language: str, rng: random.Random) -> str:
    """One slip: two letters of a word swapped, or a character written as one that sounds like it.
    Words without a place for one stay."""
    if language == "zh":
        places = [place for place, letter in enumerate(words) if letter in _SOUNDS_LIKE]
        if not places:
            return words
        place = rng.choice(places)
        return words[:place] + _SOUNDS_LIKE[words[place]] + words[place + 1 :]
    inner = [place for place in range(1, len(words) - 1) if words[place - 1 : place + 2].isalpha()]
    places = [place for place in inner if words[place].islower() and words[place] != words[place + 1]]
    if not places:
        return words
    place = rng.choice(places)
    return words[:place] + words[place + 1] + words[place] + words[place + 2 :]
