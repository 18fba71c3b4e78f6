"""A made-up building of two floors, and instructions to walk through it.

     g3            north, +y
     |
g2 - g0 - g1       g0 … g3 on the floor, s above g1 on the stairs
           |       x is not included, i is an island
           s
"""

import json

NAMES = ("g0", "x", "g1", "g2", "g3", "s", "i")
POSITIONS = {
    "g0": (0.0, 0.0, 0.0),
    "x": (1.0, 1.0, 0.0),
    "g1": (4.0, 0.0, 0.0),
    "g2": (-2.0, 0.0, 0.0),
    "g3": (0.0, 3.0, 0.0),
    "s": (4.0, -3.0, 3.0),
    "i": (20.0, 20.0, 0.0),
}
WAYS = {("g0", "g1"), ("g0", "g2"), ("g0", "g3"), ("g1", "s"), ("g0", "x")}
INSTRUCTIONS = (
    ("g0 g1 s", 0.0, ("Turn right and go up the stairs.", "Right, then up!")),
    ("g3 g0 g2", 3.14159, ("Walk down, then go right.",)),
    ("g2 g0 g1", 1.5708, ("Go straight on, past the way north, and stop.",)),
)


def viewpoints(names=NAMES, ways=WAYS, **changed):
    """The entries of a connectivity file; `changed` are fields of the third."""
    entries = []
    for name in names:
        x, y, z = POSITIONS[name]
        entries.append(
            {
                "image_id": name,
                "pose": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1],
                "included": name != "x",
                "visible": [False] * len(names),
                "unobstructed": [
                    bool({(name, other), (other, name)} & set(ways)) for other in names
                ],
                "height": 1.5,
            }
        )
    entries[2].update(changed)
    return entries


def paths(**changed):
    """The entries of an annotation file; `changed` are fields of the second."""
    entries = [
        {
            "path_id": 100 + number,
            "scan": "house",
            "path": path.split(),
            "heading": heading,
            "distance": 1.0,
            "instructions": list(texts),
        }
        for number, (path, heading, texts) in enumerate(INSTRUCTIONS)
    ]
    entries[1].update(changed)
    return entries


def write_r2r(folder, entries=None, graph=None, split="train"):
    """Writes a split and its building in the layout of Room-to-Room.

    Returns:
        The annotation file and the folder of buildings.
    """
    buildings = folder / "connectivity"
    buildings.mkdir(parents=True, exist_ok=True)
    graph = viewpoints() if graph is None else graph
    (buildings / "house_connectivity.json").write_text(json.dumps(graph), "utf-8")
    path = folder / f"R2R_{split}.json"
    path.write_text(json.dumps(paths() if entries is None else entries), "utf-8")
    return path, buildings
