"""The earlier module of farandole.integrations.ranks.placement, which pickles name."""

from ..ranks.placement import Member, Seat, by_node, number, visible_devices

__all__ = ["Member", "Seat", "by_node", "number", "visible_devices"]
