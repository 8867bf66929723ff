"""Text -> Inventory: YAML and hostfiles, found, read, narrowed and converted."""

from fleet.inventory.convert import FORMATS, convert, report
from fleet.inventory.find import find_inventory, load
from fleet.inventory.hostfile import parse_hostfile
from fleet.inventory.nodeset import expand, fold
from fleet.inventory.select import host_named, select
from fleet.inventory.yaml_file import parse_yaml

__all__ = [
    "FORMATS",
    "convert",
    "expand",
    "find_inventory",
    "fold",
    "host_named",
    "load",
    "parse_hostfile",
    "parse_yaml",
    "report",
    "select",
]
