"""A small catalogue: six tools of three kinds, with a question of each."""

from posttrain.retrieval.catalogue import Catalogue, CatalogueTool, Question

TEXTS = {
    "get_weather": ("Forecast of the weather in a city.", {"city": "name of the city"}),
    "getStockPrice": ("Last price of a share.", {"symbol": "ticker of the share"}),
    "area.circle": ("Area of a circle.", {"radius": "radius in metres"}),
    "send_mail": ("Send a letter to an address.", {"address": "where to", "text": "its words"}),
    "book_table": ("Reserve a table in a restaurant.", {"guests": "how many come"}),
    "translate": ("Turn a text into another language.", {"language": "into which"}),
}
QUESTIONS = {
    "get_weather": "Will the weather in the city be fine?",
    "getStockPrice": "What is the price of this share?",
    "area.circle": "How large is a circle of radius 2?",
    "send_mail": "Write to that address for me",
    "book_table": "A table for four guests, please",
    "translate": "Say this in another language",
}


def tool(name: str, description: str = "", properties: dict[str, str] | None = None, source: str = "ours"):
    described = {key: {"type": "string", "description": text} for key, text in (properties or {}).items()}
    parameters = {"type": "object", "properties": described, "required": list(described)}
    function = {"name": name, "description": description, "parameters": parameters}
    return CatalogueTool({"type": "function", "function": function}, source)


def small_catalogue() -> Catalogue:
    tools = tuple(tool(name, *about) for name, about in TEXTS.items())
    return Catalogue(tools, tuple(Question(text, (name,), "ours") for name, text in QUESTIONS.items()))
