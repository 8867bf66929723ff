"""Text -> Inventory: YAML and hostfiles, found, read, narrowed and converted."""

from fleet.inventory.find import find_inventory, load
from fleet.inventory.hostfile import parse_hostfile
from fleet.inventory.select import select
from fleet.inventory.yaml_file import parse_yaml

__all__ = ["find_inventory", "load", "parse_hostfile", "parse_yaml", "select"]
