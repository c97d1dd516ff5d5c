package org.apache.pulsar.broker.delayed.bucket;

import io.netty.util.Timeout;
import io.netty.util.Timer;
import io.netty.util.TimerTask;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.persistent.AbstractPersistentDispatcherMultipleConsumers;
import org.mockito.Mockito;

/**
 * What a tracker meets in a broker, as little as it needs: a dispatcher, a cursor that keeps properties, a clock that
 * stands still until it is moved, and a timer that never goes off, since whoever drives the tracker polls it.
 */
final class StandInBroker {
    static final String TOPIC = "persistent://public/default/peer";
    static final String CURSOR = "sub";

    final Map<String, String> properties = new ConcurrentSkipListMap<>();
    final StandingClock clock = new StandingClock();
    private final Position markDeleted;
    private final AbstractPersistentDispatcherMultipleConsumers dispatcher;

    StandInBroker(Map<String, String> properties, long nowMs) {
        this(properties, nowMs, PositionFactory.create(0, -1));
    }

    StandInBroker(Map<String, String> properties, long nowMs, Position markDeleted) {
        this.properties.putAll(properties);
        this.markDeleted = markDeleted;
        clock.nowMs = nowMs;
        ManagedCursor cursor = cursor();
        dispatcher = Mockito.mock(AbstractPersistentDispatcherMultipleConsumers.class,
                Mockito.withSettings().stubOnly());
        Mockito.doReturn(TOPIC + " / " + CURSOR).when(dispatcher).getName();
        Mockito.doReturn(cursor).when(dispatcher).getCursor();
    }

    BucketDelayedDeliveryTracker newTracker(BucketSnapshotStorage storage, Arguments arguments)
            throws RecoverDelayedDeliveryTrackerException {
        return new BucketDelayedDeliveryTracker(dispatcher, new NoTimer(), 1_000, clock, true, storage,
                arguments.number("min"), arguments.number("step"), (int) arguments.number("segment"),
                (int) arguments.number("buckets"));
    }

    private ManagedCursor cursor() {
        ManagedLedger ledger = standIn(ManagedLedger.class, (self, method, given) -> switch (method.getName()) {
            case "getName" -> "public/default/persistent/peer";
            default -> throw new UnsupportedOperationException(method.toString());
        });
        return standIn(ManagedCursor.class, (self, method, given) -> switch (method.getName()) {
            case "getName" -> CURSOR;
            case "getManagedLedger" -> ledger;
            case "getMarkDeletedPosition" -> markDeleted;
            case "getCursorProperties" -> new TreeMap<>(properties);
            case "putCursorProperty" -> {
                properties.put((String) given[0], (String) given[1]);
                yield CompletableFuture.completedFuture(null);
            }
            case "removeCursorProperty" -> {
                properties.remove((String) given[0]);
                yield CompletableFuture.completedFuture(null);
            }
            case "toString" -> CURSOR;
            default -> throw new UnsupportedOperationException(method.toString());
        });
    }

    private static <T> T standIn(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, handler));
    }

    /** A clock that tells what it was set to. */
    static final class StandingClock extends Clock {
        volatile long nowMs;

        @Override
        public long millis() {
            return nowMs;
        }

        @Override
        public Instant instant() {
            return Instant.ofEpochMilli(nowMs);
        }

        @Override
        public ZoneId getZone() {
            return ZoneOffset.UTC;
        }

        @Override
        public Clock withZone(ZoneId zone) {
            return this;
        }
    }

    private static final class NoTimer implements Timer {
        @Override
        public Timeout newTimeout(TimerTask task, long delay, TimeUnit unit) {
            return new NoTimeout(this, task);
        }

        @Override
        public Set<Timeout> stop() {
            return Set.of();
        }
    }

    private record NoTimeout(Timer timer, TimerTask task) implements Timeout {
        @Override
        public boolean isExpired() {
            return false;
        }

        @Override
        public boolean isCancelled() {
            return false;
        }

        @Override
        public boolean cancel() {
            return true;
        }
    }
}
