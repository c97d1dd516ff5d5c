"""One client connection: it receives frames, calls handlers, sends bytes, and ends for a reason.

    bytes received ─► FrameSplitter ─┬─ SEND ─────────────────────► Publisher (appends, receipts)
                                     ├─ FLOW, ACK, REDELIVER, PING ► at once, on this call
                                     └─ requests ──────────────────► a queue for each topic (`request_queues`)

Commands of single messages are handled on the receiving call, without a task or an await, for a slice of time: the
rest of many has the next turns of the event loop. Requests of one topic wait for each other. A protocol error ends this
connection with the reason in the log and touches no other.

`postdate.broker.authentication` turns the credentials of CONNECT into a role, and `requests` checks the role's
permissions for each request. Single messages are not checked: when a grant is removed, its producers and consumers are
closed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn

from managed_ledger.positions.position import Position
from postdate.broker.authentication.credentials import Credentials, NextStep
from postdate.broker.authentication.provider import AuthenticationError
from postdate.broker.authorization.grants import Action
from postdate.broker.clients.acknowledging import acknowledge
from postdate.broker.clients.publishing import Publisher
from postdate.broker.clients.request_queues import RequestQueues
from postdate.broker.clients.writability import READ_BYTES_MAX, Writability
from postdate.broker.protocol import commands
from postdate.broker.protocol.errors import ProtocolError
from postdate.broker.protocol.frames import CorruptSend, Frame, FrameSplitter, Send, UnparsedFrame, parse_frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandAck
from postdate.broker.service.service import Service
from postdate.broker.slices import SLICE_S, in_slices
from postdate.broker.topics.consumer import Consumer
from postdate.broker.topics.deduplication import UNKNOWN
from postdate.broker.topics.producers import Producer
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

PUBLISH_PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a connection that are not durable yet; above it the connection reads nothing. `PublishBuffer` has the bound
of all connections."""


UNREAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that a client has not read; above it its connection ends. Deliveries stop long before (`Writability`). Where
they may be larger than by default, so is this."""

UNSENT_BYTES_MAX: Final = 64 * 1024
"""Bytes of one turn that are kept for the next one. A call of the system takes 15 µs, however little it sends."""

REQUESTS_MAX: Final = 1_000
"""Requests that wait for an answer; reading pauses above it."""

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection. As the beginning of a frame it would stand for over 350 MB."""

_FRAMES_WAIT: Final = "received frames wait"

CLOSE_GRACE_S: Final = 1.0
"""How long a closed connection may take to send its last bytes."""

CommandHandler = Callable[["Connection", BaseCommand], Awaitable[None]]
"""Answers one request."""


class Connection(asyncio.BufferedProtocol):
    """One client connection, on the service's event loop.

    Args:
        service: The state that all connections share.
        handlers: Answers requests, by type of command.
        publish_pending_bytes_max: Reading pauses while more bytes wait for the disk.
        clock_s: A clock that never goes back, in seconds; None for that of the event loop.
    """

    def __init__(
        self,
        service: Service,
        handlers: Mapping[int, CommandHandler],
        *,
        publish_pending_bytes_max: int = PUBLISH_PENDING_BYTES_MAX,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        self.service = service
        self._handlers = handlers
        self.producers: dict[int, tuple[Producer, Topic]] = {}
        self.consumers: dict[int, tuple[Consumer, Topic]] = {}
        self.readers_sent_away: dict[int, tuple[Consumer, Topic]] = {}
        """By id, as by a seek, until they return; if they do not, their subscriptions go with the connection."""
        self._writability = Writability()
        batch_bytes_max = max(service.config.dispatcher.read_bytes_max, service.config.message_size_max)
        self._unread_bytes_max = max(UNREAD_BYTES_MAX, 2 * READ_BYTES_MAX + batch_bytes_max)
        self.peer = "?"
        self.client_version = ""
        self.credentials = Credentials(service.authenticator, None, challenge_before_ms=0)
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(service.config.message_size_max)
        self._clock_s = asyncio.get_running_loop().time if clock_s is None else clock_s
        self._frames: list[UnparsedFrame] = []
        """Received, and left for the next turns of the event loop."""
        self._handling: asyncio.Task[None] | None = None
        """Handles them; None while there are none."""
        self._publisher = Publisher(
            self,
            pending_bytes_max=publish_pending_bytes_max,
            buffer=service.publish_buffer,
            refusal_log=service.refusal_log,
        )
        self._requests = RequestQueues(
            self._answer_request,
            producer_topic=lambda producer_id: _topic_of(self.producers.get(producer_id)),
            consumer_topic=lambda consumer_id: _topic_of(self.consumers.get(consumer_id)),
            spawn=service.spawn,
        )
        self._connect_timer: asyncio.TimerHandle | None = None
        self._is_connected = False
        self._has_received = False
        self._pings_unanswered = 0
        self._has_answered_or_left = asyncio.Event()
        self._dismissed_producers: set[int] = set()
        self.refusals: dict[int, str] = {}
        """By id of a producer that was closed for a refused message: the answer to its client's next request for it."""
        self._pauses: set[str] = set()
        self._unsent: list[bytes] = []
        """Written in this turn of the event loop; sent with the next one."""
        self._unsent_bytes = 0
        self._is_leaving = False

    # ---- transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{self._address}:{port}"
        self._refusal = self.service.connection_controller.admit(self._address)
        self.credentials = Credentials(
            self.service.authenticator,
            transport.get_extra_info("peercert") or None,
            challenge_before_ms=self.service.config.access.refresh_check_s * 1000,
        )
        self.service.connections.add(self)
        timeout_s = self.service.config.limits.connect_timeout_s
        self._connect_timer = asyncio.get_running_loop().call_later(
            timeout_s, self.close, f"no CONNECT within {timeout_s} s"
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            logger.info("connection %s lost: %s", self.peer, exc)
        self._transport = None
        self.service.connections.discard(self)
        self.service.ended_total += 1
        if self._refusal is None:
            self.service.connection_controller.release(self._address)
        self._begin_to_leave()

    def pause_writing(self) -> None:
        """Send nothing more for now: the client reads more slowly than its consumers are sent to."""
        self._writability.pause()

    def resume_writing(self) -> None:
        if self._writability.resume():
            self._tell_writable()

    def _tell_writable(self) -> None:
        # The first ones may use up all that the connection takes. Each call begins with another consumer.
        first = next(iter(self.consumers), None)
        if first is not None:
            self.consumers[first] = self.consumers.pop(first)
        for consumer, topic in self.consumers.values():
            # A dispatcher ignores those that it does not have.
            subscription = topic.subscriptions.get(consumer.subscription_name)
            if subscription is not None and subscription.dispatcher is not None:
                subscription.dispatcher.consumer_writable(consumer)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self.service.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what was received, in slices: a chunk may hold a thousand acknowledgements, 0.1 ms each."""
        if self._is_leaving:
            # The end of TLS may bring bytes of before.
            return
        self._has_received = True
        received = bytes(self.service.receive_buffer[:nbytes])
        try:
            if not self._is_connected and received.startswith(_TLS_HANDSHAKE):
                raise ProtocolError("it speaks TLS, and this port does not: pulsar+ssl:// needs brokerServicePortTls")
            frames = self._splitter.feed(received)
        except ProtocolError as error:
            self._end_for(error)
            return
        if self._handling is not None:
            # It goes on with them, also where it has handled all others and only waits for its turn.
            self._frames += frames
            return
        self._frames = self._after_a_slice(frames)
        if self._frames:
            self.pause_reading(_FRAMES_WAIT)
            self._handling = self.service.spawn(self._handle_others())

    def _after_a_slice(self, frames: list[UnparsedFrame]) -> list[UnparsedFrame]:
        """Parse and handle frames until a slice's time has passed, and return the others."""
        following = iter(frames)
        ends_s = self._clock_s() + SLICE_S
        try:
            for frame in following:
                self._on_frame(parse_frame(*frame))
                if self._clock_s() >= ends_s:
                    break
        except ProtocolError as error:
            self._end_for(error)
            return []
        self._publisher.flush()
        return list(following)

    async def _handle_others(self) -> None:
        """Handle the frames that are left, a slice a turn, before anything more is read."""
        while self._frames:
            try:
                self._frames = self._after_a_slice(self._frames)
            except Exception:
                # A supervisor, as asyncio itself is for the receiving call: a defect ends the connection.
                logger.exception("a frame of connection %s failed", self.peer)
                self._frames = []
                self.close("a frame failed")
            await asyncio.sleep(0)
        self._handling = None
        self.resume_reading(_FRAMES_WAIT)

    def _end_for(self, error: ProtocolError) -> None:
        """Close the connection for what its client has sent; nothing behind it is handled."""
        # Most clients connect again for ever, each time with the same token.
        self.close(str(error), is_repeated=True)
        self._publisher.flush()

    @property
    def is_writable(self) -> bool:
        """Whether more may be read for its consumers."""
        return self._writability.is_writable and not self._is_leaving

    def begin_read(self, size: int) -> None:
        """Count bytes that are being read for a consumer, up to their write."""
        self._writability.begin_read(size)

    def end_read(self, size: int) -> None:
        """Count these no more."""
        if self._writability.end_read(size):
            self._tell_writable()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._is_leaving or self._transport is None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes; dropped when the connection is gone."""
        if self.is_closed:
            return
        is_first = not self._unsent
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= UNSENT_BYTES_MAX:
            self._send()
        elif is_first:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send what was written; many answers and messages of one turn are one call of the system."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if not unsent or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        if self._transport.get_write_buffer_size() > self._unread_bytes_max:
            self.close("it does not read what it is sent")

    def close(self, reason: str | None = None, *, is_repeated: bool = False) -> None:
        """End the connection; a reason is logged as a warning, a repeated one once a minute for each address.

        Its consumers leave at once: a client that has stopped reading must not hold their messages.
        """
        if self._is_leaving:
            return
        if reason is not None:
            text = f"closing connection {self.peer}: {reason}"
            if is_repeated:
                address = self.peer.rpartition(":")[0]
                self.service.refusal_log.log(logger, logging.WARNING, (address, reason), text)
            else:
                logger.warning("%s", text)
        self._send()
        self._begin_to_leave()
        if self._transport is not None:
            self._end_transport(self._transport, is_orderly=reason is None)
            asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    @staticmethod
    def _end_transport(transport: asyncio.Transport, *, is_orderly: bool) -> None:
        if not is_orderly or not transport.can_write_eof():
            transport.close()
            return
        # The client ends it. Where a socket is closed with unread bytes, the kernel resets the connection, and a client
        # that is still sending notices that before it has read its last receipts: it would send those messages again.
        transport.write_eof()
        transport.resume_reading()

    def pause_reading(self, why: str) -> None:
        """Read no more bytes from the client until every reason to pause is gone."""
        self._pauses.add(why)
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self, why: str) -> None:
        """Remove a reason to pause."""
        if why not in self._pauses:
            return
        self._pauses.remove(why)
        if not self._pauses and not self.is_closed and self._transport is not None:
            # An answer to a PING of before may still wait in the socket.
            self._pings_unanswered = 0
            self._transport.resume_reading()

    def check_alive(self) -> None:
        """Ping a client that has been silent for one interval, and close after the second silent one.

        While reading pauses no sign of life can arrive, so the client counts as alive.
        """
        if self._pauses:
            return
        if self._has_received:
            self._has_received = False
            self._pings_unanswered = 0
            return
        if self._pings_unanswered:
            self.close("no sign of life within two keep-alive intervals")
            return
        self._pings_unanswered += 1
        self.write(commands.PING)

    async def is_alive(self) -> bool:
        """Ping the client now; without an answer in time, close and say no.

        While reading pauses no answer can arrive, so the client counts as alive. With
        `connectionLivenessCheckTimeoutMillis` of 0 every client does.
        """
        timeout_ms = self.service.config.liveness_timeout_ms
        if self.is_closed or not timeout_ms:
            return not self.is_closed
        self._has_answered_or_left.clear()
        self.write(commands.PING)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._has_answered_or_left.wait()
        except TimeoutError:
            if not self._pauses:
                self.close(f"no sign of life within {timeout_ms} ms, and another consumer wants its key ranges")
        return not self.is_closed

    def close_producer(self, producer_id: int, *, refusal: str | None = None) -> None:
        """Accept nothing more from a producer, and tell its client after its receipts: it makes it again by itself.

        Args:
            producer_id: The client's number for it.
            refusal: Why a message of it was refused: the client's next request for the producer is answered so.
        """
        found = self.producers.pop(producer_id, None)
        if found is not None:
            if refusal is not None:
                self.refusals[producer_id] = refusal
            producer, topic = found
            self._dismissed_producers.add(producer_id)
            topic.producers.remove(producer)
            self._publisher.tell_closed(topic.ledger, producer_id)

    def refuse_producer(self, producer_id: int, request_id: int) -> None:
        """Tell the client that its waiting producer is fenced."""
        if self.producers.pop(producer_id, None) is not None:
            self._dismissed_producers.add(producer_id)
            message = "Another producer has taken exclusive access"
            self.write(commands.error(request_id, error="ProducerFenced", message=message))

    def producer_ready(self, request_id: int, producer_name: str, topic_epoch: int | None) -> None:
        """Tell the client that its waiting producer may begin."""
        topics = (topic for producer, topic in self.producers.values() if producer.request_id == request_id)
        answer = commands.producer_success(
            request_id,
            producer_name=producer_name,
            last_sequence_id=next((one.last_sequence_id(producer_name) for one in topics), UNKNOWN),
            topic_epoch=topic_epoch,
        )
        self.write(answer)

    def close_consumer(self, consumer_id: int) -> None:
        """Close a consumer and tell its client, which subscribes again by itself."""
        found = self.consumers.pop(consumer_id, None)
        if found is not None and found[1].is_reader(found[0]):
            self.readers_sent_away[consumer_id] = found
        self.write(commands.close_consumer(consumer_id))

    # ---- frames ----

    def _on_frame(self, frame: Frame) -> None:
        if not self._is_connected:
            self._connect(frame)
        elif isinstance(frame, Send):
            self._on_send(frame)
        elif isinstance(frame, CorruptSend):
            message = "Checksum failed on the broker"
            self.write(
                commands.send_error(frame.producer_id, frame.sequence_id, error="ChecksumError", message=message)
            )
        else:
            self._on_command(frame)

    def _on_send(self, send: Send) -> None:
        found = self.producers.get(send.producer_id)
        if found is None:
            if send.producer_id not in self._dismissed_producers:
                raise ProtocolError(f"SEND of producer {send.producer_id}, which does not exist")
            # The producer is closed: its client knows, and sends again after it has reconnected.
            return
        producer, topic = found
        deduplication = topic.deduplication
        if deduplication is not None and deduplication.is_duplicate(producer.name, send):
            self._publisher.acknowledge_duplicate(topic, send)
        elif self._publisher.append(topic, send):
            if deduplication is not None:
                deduplication.published(producer.name, send)
            metadata = send.metadata
            deliver_at_ms = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
            topic.on_published(producer, send.num_messages, deliver_at_ms)

    def _on_command(self, command: BaseCommand) -> None:
        immediate = _IMMEDIATE.get(command.type)
        if immediate is not None:
            immediate(self, command)
        elif command.type in self._handlers:
            self._requests.put(command)
            if len(self._requests) > REQUESTS_MAX:
                self.pause_reading("requests wait")
        else:
            raise ProtocolError(f"command of type {command.type} is not one that a client sends")

    def _connect(self, frame: Frame) -> None:
        if not isinstance(frame, BaseCommand) or frame.type != BaseCommand.CONNECT:
            raise ProtocolError("a command before CONNECT")
        if self._refusal is not None:
            self._refuse_client("NotAllowedError", self._refusal)
        connect = frame.connect
        try:
            self.credentials.connect(
                connect.auth_method_name,
                connect.auth_data,
                can_be_challenged=connect.feature_flags.supports_auth_refresh,
                now_ms=self.service.now_ms(),
            )
        except AuthenticationError as error:
            self._refuse_client("AuthenticationError", f"Failed to authenticate: {error}")
        if self.service.authorizer is not None and connect.original_principal.strip():
            # Only a proxy may act for another principal, and there are no proxy roles here.
            self._refuse_client("AuthorizationError", "Invalid roles.")
        self._is_connected = True
        self._cancel_connect_timer()
        self.client_version = connect.client_version
        self.write(
            commands.connected(
                server_version=self.service.server_version,
                protocol_version=connect.protocol_version,
                message_size_max=self.service.config.message_size_max,
            )
        )

    def _refuse_client(self, error: str, message: str) -> NoReturn:
        self.write(commands.error(commands.NO_REQUEST_ID, error=error, message=message))
        raise ProtocolError(message)

    def check_credentials(self) -> None:
        """Ask for new credentials before they end, and end the connection with them."""
        match self.credentials.next_step(self.service.now_ms()):
            case NextStep.CHALLENGE:
                self.write(
                    commands.auth_challenge(
                        server_version=self.service.server_version, method_name=self.credentials.method_name
                    )
                )
            case NextStep.END:
                self.close("its credentials have expired")

    async def check_permissions(self) -> None:
        """Close every producer and consumer that the client's role does not allow any more, as Pulsar does."""
        async for producer, topic in in_slices(list(self.producers.values())):
            if not self.may(Action.PRODUCE, topic.name):
                logger.info("role %r may not produce to %s any more", self.credentials.role, topic.name)
                producer.disconnect()
        async for consumer, topic in in_slices(list(self.consumers.values())):
            if not self.may(Action.CONSUME, topic.name):
                logger.info("role %r may not consume from %s any more", self.credentials.role, topic.name)
                topic.dismiss_consumer(consumer)
                self.service.spawn(topic.consumer_left(consumer))

    def may(self, action: Action, topic: TopicName) -> bool:
        """Whether the client's role may produce to a topic or consume from it."""
        authorizer = self.service.authorizer
        return authorizer is None or authorizer.may(self.credentials.role, action, topic)

    def _on_auth_response(self, command: BaseCommand) -> None:
        response = command.authResponse.response
        try:
            self.credentials.answer(response.auth_method_name, response.auth_data, now_ms=self.service.now_ms())
        except AuthenticationError as error:
            self._refuse_client("AuthenticationError", f"Failed to authenticate: {error}")

    def _on_ping(self, _: BaseCommand) -> None:
        self.write(commands.PONG)

    def _on_pong(self, _: BaseCommand) -> None:
        """Answer a waiting liveness check; at the next interval any received byte counts as a sign of life."""
        self._has_answered_or_left.set()

    def _on_flow(self, command: BaseCommand) -> None:
        flow = command.flow
        found = self.consumers.get(flow.consumer_id)
        dispatcher = found and found[1].dispatcher_of(found[0])
        if found and dispatcher:
            dispatcher.consumer_flow(found[0], flow.messagePermits)

    def _on_ack(self, command: BaseCommand) -> None:
        ack = command.ack
        found = self.consumers.get(ack.consumer_id)
        if found is None:
            return
        error = acknowledge(*found, ack)
        if ack.HasField("request_id"):
            self.write(_ack_response(ack, error))

    def _on_redeliver(self, command: BaseCommand) -> None:
        redeliver = command.redeliverUnacknowledgedMessages
        found = self.consumers.get(redeliver.consumer_id)
        dispatcher = found and found[1].dispatcher_of(found[0])
        if not found or not dispatcher:
            return
        if redeliver.HasField("consumer_epoch"):
            found[0].epoch = redeliver.consumer_epoch
        positions = [Position(message_id.ledgerId, message_id.entryId) for message_id in redeliver.message_ids]
        dispatcher.redeliver_unacknowledged_messages(found[0], positions or None)

    # ---- requests ----

    async def _answer_request(self, command: BaseCommand) -> None:
        if self.is_closed:
            return
        if len(self._requests) == REQUESTS_MAX // 2:
            self.resume_reading("requests wait")
        try:
            await self._handlers[command.type](self, command)
        except Exception:
            # A supervisor: a bug in one request must not leave its client waiting for ever. The connection ends, its
            # client reconnects, other connections go on.
            logger.exception("request of connection %s failed", self.peer)
            self.close("a request failed")

    def _begin_to_leave(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self._cancel_connect_timer()
            self._has_answered_or_left.set()
            self.service.spawn(self._leave())

    def _cancel_connect_timer(self) -> None:
        if self._connect_timer is not None:
            self._connect_timer.cancel()
            self._connect_timer = None

    async def _leave(self) -> None:
        if self._handling is not None:
            # Frames received before the end are handled, acknowledgements above all.
            await self._handling
        await self._requests.finished()
        async for producer, topic in in_slices(list(self.producers.values())):
            topic.producers.remove(producer)
        self.producers.clear()
        async for consumer, topic in in_slices([*self.consumers.values(), *self.readers_sent_away.values()]):
            await topic.consumer_left(consumer)
        self.consumers.clear()
        self.readers_sent_away.clear()
        # Both refer to the connection. Without them, the memory of an ended one goes without a collection of cycles.
        del self._publisher, self._requests


def _topic_of(found: tuple[object, Topic] | None) -> TopicName | None:
    return None if found is None else found[1].name


def _ack_response(ack: CommandAck, error: str | None) -> bytes:
    if error is None:
        return commands.ack_response(ack.consumer_id, ack.request_id)
    return commands.ack_response(ack.consumer_id, ack.request_id, error="NotAllowedError", message=error)


_IMMEDIATE: Final[dict[int, Callable[[Connection, BaseCommand], None]]] = {
    BaseCommand.PING: Connection._on_ping,
    BaseCommand.PONG: Connection._on_pong,
    BaseCommand.AUTH_RESPONSE: Connection._on_auth_response,
    BaseCommand.FLOW: Connection._on_flow,
    BaseCommand.ACK: Connection._on_ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: Connection._on_redeliver,
}
