"""Agreement of judges, people or models: Cohen's kappa, Krippendorff's alpha. Pure functions.

Exact agreement flatters a judge: where nine of ten episodes are good, who calls all of them good
agrees in 90 % and knows nothing. Both coefficients take off what chance would give.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any, Literal


def exact_agreement(pairs: Sequence[tuple[Any, Any]]) -> float | None:
    """Share of the pairs whose sides are equal; None without pairs."""
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def cohens_kappa(pairs: Sequence[tuple[Any, Any]]) -> float | None:
    """(p - e) / (1 - e) of the share p of equal pairs and of e, what two judges with these habits
    would have by chance (Cohen 1960). None without pairs, or where both say one thing alone.

    20 times yes and yes, 5 yes and no, 10 no and yes, 15 no and no: p .7, e .5, kappa .4.
    """
    if not pairs:
        return None
    first, second = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    by_chance = sum(first[value] * second[value] for value in first) / len(pairs) ** 2
    share = exact_agreement(pairs)
    return None if by_chance == 1 or share is None else (share - by_chance) / (1 - by_chance)


def krippendorffs_alpha(
    units: Sequence[Mapping[str, Any]], *, level: Literal["nominal", "interval"] = "nominal"
) -> float | None:
    """1 - D observed / D expected (Krippendorff, Computing Krippendorff's Alpha-Reliability, 2011)
    of what several judges said of the same things. A unit has what each said, by the judge's name;
    units with one judge count for nothing. None where nothing was said twice, or all said one
    thing. `interval`: 1 and 5 lie further apart than 1 and 2."""
    said = [list(unit.values()) for unit in units if len(unit) > 1]
    apart: Callable[[Any, Any], float] = (
        (lambda one, other: float(one != other)) if level == "nominal" else (lambda one, other: float(one - other) ** 2)
    )
    coincidences: defaultdict[tuple[Any, Any], float] = defaultdict(float)
    for values in said:
        for one, other in permutations(values, 2):
            coincidences[one, other] += 1 / (len(values) - 1)
    totals: defaultdict[Any, float] = defaultdict(float)
    for (one, _), count in coincidences.items():
        totals[one] += count
    num = sum(totals.values())
    observed = sum(count * apart(*pair) for pair, count in coincidences.items())
    expected = sum(totals[one] * totals[other] * apart(one, other) for one in totals for other in totals)
    return 1 - (num - 1) * observed / expected if expected else None
