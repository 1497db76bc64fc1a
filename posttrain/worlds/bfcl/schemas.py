"""OpenAI schemas of the package's functions, made of its documents, and the list of read-only ones.

Types are turned as the package turns them for a function-calling model, the note on a float
included; what it says of Python's syntax is left out, because an agent here writes JSON.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from posttrain.worlds.bfcl import package

# Functions after which every later answer is as if they had not been called, in every set; a test
# calls each between gold calls. `get_current_speed` and `get_outside_temperature_from_google` are
# none: they draw a new number each time.
READ_ONLY: Mapping[str, frozenset[str]] = {
    name: frozenset(functions.split())
    for name, functions in {
        "GorillaFileSystem": "cat diff du find grep ls pwd sort tail wc",
        "MathAPI": """
            absolute_value add divide imperial_si_conversion logarithm max_value mean min_value
            multiply percentage power round_number si_unit_conversion square_root standard_deviation
            subtract sum_values
        """,
        "MessageAPI": """
            get_message_stats get_user_id list_users message_get_login_status search_messages
            view_messages_sent
        """,
        "TicketAPI": "get_ticket get_user_tickets ticket_get_login_status",
        "TradingBot": """
            filter_stocks_by_price get_account_info get_available_stocks get_current_time
            get_order_details get_order_history get_stock_info get_symbol_by_name
            get_transaction_history get_watchlist notify_price_change trading_get_login_status
        """,
        "TravelAPI": """
            compute_exchange_rate contact_customer_support get_all_credit_cards get_booking_history
            get_budget_fiscal_year get_credit_card_balance get_flight_cost
            get_nearest_airport_by_city list_all_airports retrieve_invoice travel_get_login_status
            verify_traveler_information
        """,
        "TwitterAPI": """
            get_tweet get_tweet_comments get_user_stats get_user_tweets list_all_following
            posting_get_login_status search_tweets
        """,
        "VehicleControlAPI": """
            check_tire_pressure displayCarStatus display_log estimate_distance
            estimate_drive_feasibility_by_mileage find_nearest_tire_shop gallon_to_liter
            get_outside_temperature_from_weather_com get_zipcode_based_on_city liter_to_gallon
        """,
    }.items()
}


def is_read_only(name: str) -> bool:
    """True for a read-only function of any of the classes; their names are distinct."""
    return any(name in names for names in READ_ONLY.values())


@cache
def schemas_of(class_name: str) -> Mapping[str, Mapping[str, Any]]:
    """OpenAI's schema of each function of a class, by its name."""
    return {document["name"]: _schema(document) for document in package.documents(class_name)}


def _schema(document: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = document["parameters"]
    properties = {name: _property(value) for name, value in parameters["properties"].items()}
    return {
        "name": document["name"],
        "description": document["description"],
        "parameters": {"type": "object", "properties": properties, "required": parameters.get("required", [])},
    }


def _property(value: Mapping[str, Any]) -> dict[str, Any]:
    json_types = package.module("constants.type_mappings").GORILLA_TO_OPENAPI
    turned = dict(value)
    if value["type"] == "float":
        turned |= {"format": "float", "description": f"{value['description']} This is a float type value."}
    turned["type"] = json_types[value["type"]]
    if "items" in value:
        turned["items"] = dict(value["items"]) | {"type": json_types[value["items"]["type"]]}
    if "properties" in value:
        turned["properties"] = {name: _property(inner) for name, inner in value["properties"].items()}
    return turned
