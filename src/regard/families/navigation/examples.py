"""Built-in houses to try a model with on the page."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from regard.families.navigation.synthetic import built_in_houses, built_in_routes

COUNT, SEED = 3, 7  # houses that no recipe trains on


@cache
def examples() -> list[dict[str, Any]]:
    """Connectivity files, each with a route through the house in words; headings are in degrees."""
    return [
        {
            "name": house.scan,
            "graph": house.to_json(),
            "start": house.viewpoints[route.path[0]],
            "heading": round(math.degrees(route.heading), 1),
            "instruction": route.instructions[0],
        }
        for house in built_in_houses(SEED, COUNT)
        for route in built_in_routes(house, SEED, 1)
    ]
