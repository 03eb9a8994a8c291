"""The preflight: ask every site, before any charge, whether it would answer the next round.

No patient is read, and the answer reveals no more than a refusal of the round would reveal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from dpfact_flower.collect import RetryingGrid, format_error
from dpfact_flower.errors import MessageError
from dpfact_flower.server.readiness import Readiness
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import ROUND_TIMEOUT, VERSION, RoundRequest, SiteReply

_UNKNOWN = ("No query function registered", "Invalid message type: query")
"""Replies of ClientApps that have no preflight, because they lack this package's `query`."""


def ask_ready(
    grid: Grid, nodes: Sequence[int], request: RoundRequest, *, timeout: float, patience: float
) -> list[Readiness]:
    """Ask each node whether it would answer a round of `timeout` seconds. Wait for `patience`."""
    arrays, config = request.to_wire()
    content = records.ask(arrays, {**config, ROUND_TIMEOUT: float(timeout)})
    sent = [
        Message(content, node, MessageType.QUERY, ttl=patience, group_id=str(request.round))
        for node in nodes
    ]
    began = time.time()
    replies = RetryingGrid(grid, sent.append).send_and_receive(list(sent), timeout=patience)
    ended = time.time()
    node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    answers = {node: Readiness(node, fault=f"no answer within {patience:g} s") for node in nodes}
    for reply in replies:
        node = node_of[reply.metadata.reply_to_message_id]
        answers[node] = _read(node, reply, began, ended)
    return list(answers.values())


def _read(node: int, reply: Message, began: float, ended: float) -> Readiness:
    replied = reply.metadata.created_at
    seconds = min(max(replied - began, 0.0), ended - began)
    if reply.has_error():
        reason = format_error(reply.error)
        can_answer = not any(text in reason for text in _UNKNOWN)
        return Readiness(node, fault=reason if can_answer else "", seconds=seconds)
    try:
        payload = records.read_reply(reply)
        site = SiteReply.from_wire(payload.arrays, payload.config, []).site
    except MessageError as error:
        return Readiness(node, fault=str(error))
    clock = replied - ended if replied > ended else min(replied - began, 0.0)
    return Readiness(node, site, "", str(payload.config.get(VERSION, ""))[:40], seconds, clock)
