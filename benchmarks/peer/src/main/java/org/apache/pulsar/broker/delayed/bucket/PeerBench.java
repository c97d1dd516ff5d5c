package org.apache.pulsar.broker.delayed.bucket;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

/**
 * Measures Pulsar's own bucket tracker, as {@code benchmarks/tracker_ours.py} measures ours.
 *
 * <p>{@code times} is a file of 64-bit little-endian delivery times, one a message; message {@code i} is entry
 * {@code i % ledger} of ledger {@code i / ledger}. What is measured was run before, {@code warmup} times and as far as
 * 500,000 messages, so that it is compiled. One thread adds, one writes files. An add's longest pause is taken over
 * {@value #ADDS_PER_LAP} adds in a row, as reading the clock for each would cost as much as adding.
 */
final class PeerBench {
    private static final int ADDS_PER_LAP = 100;
    private static final int POLL_ROWS = 1_000;
    private static final int WARMUP_MESSAGES = 500_000;

    private final Arguments arguments;
    private final int entriesPerLedger;
    private final long[] times;
    private final Map<String, Object> figures = new TreeMap<>();

    PeerBench(Arguments arguments) throws Exception {
        this.arguments = arguments;
        entriesPerLedger = (int) arguments.number("ledger");
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(arguments.path("times"))).order(ByteOrder.LITTLE_ENDIAN);
        times = new long[bytes.remaining() / Long.BYTES];
        bytes.asLongBuffer().get(times);
    }

    Map<String, Object> run() throws Exception {
        long[] some = Arrays.copyOf(times, Math.min(times.length, WARMUP_MESSAGES));
        for (int round = 0; round < arguments.number("warmup"); round++) {
            measure(some, arguments.path("folder").resolve("warmup" + round));
        }
        figures.clear();
        measure(times, arguments.path("folder").resolve("measured"));
        return figures;
    }

    private void measure(long[] deliverAts, Path folder) throws Exception {
        FolderSnapshotStorage storage = new FolderSnapshotStorage(folder);
        long heapBefore = usedHeap();
        StandInBroker broker = new StandInBroker(Map.of(), arguments.number("now"));
        BucketDelayedDeliveryTracker tracker = broker.newTracker(storage, arguments);
        add(tracker, deliverAts);
        storage.awaitQuiet();
        long memory = usedHeap() - heapBefore + tracker.getBufferMemoryUsage();
        figures.put("memory_bytes_per_message", (double) memory / deliverAts.length);
        long unsealed = tracker.getLastMutableBucket().size();
        long sealed = deliverAts.length - unsealed;
        figures.put("unsealed", unsealed);
        figures.put("rows_written_per_row", (double) storage.rowsWritten.get() / sealed);
        ask(tracker, deliverAts);
        long stored = recover(broker, folder);
        figures.put("at_rest_bytes_per_row", (double) storage.bytesAtRest() / stored);
        drain(tracker, broker, deliverAts.length);
        storage.awaitQuiet();
        tracker.close();
        storage.close();
    }

    private void add(BucketDelayedDeliveryTracker tracker, long[] deliverAts) {
        long longestNs = 0;
        long addingNs = 0;
        for (int start = 0; start < deliverAts.length; start += ADDS_PER_LAP) {
            int end = Math.min(deliverAts.length, start + ADDS_PER_LAP);
            long beganNs = System.nanoTime();
            for (int row = start; row < end; row++) {
                tracker.addMessage(row / entriesPerLedger, row % entriesPerLedger, deliverAts[row]);
            }
            long tookNs = System.nanoTime() - beganNs;
            addingNs += tookNs;
            longestNs = Math.max(longestNs, tookNs);
        }
        figures.put("single_adds_per_s", deliverAts.length * 1e9 / addingNs);
        figures.put("single_longest_pause_ms", longestNs / 1e6);
    }

    private void ask(BucketDelayedDeliveryTracker tracker, long[] deliverAts) {
        long beganNs = System.nanoTime();
        int found = 0;
        for (int row = 0; row < deliverAts.length; row++) {
            if (tracker.containsMessage(row / entriesPerLedger, row % entriesPerLedger)) {
                found++;
            }
        }
        figures.put("contains_per_s", deliverAts.length * 1e9 / (System.nanoTime() - beganNs));
        figures.put("contained", found);
    }

    /** Recovers a second tracker from what the first one has stored, and returns how many rows that is. */
    private long recover(StandInBroker first, Path folder) throws Exception {
        FolderSnapshotStorage storage = new FolderSnapshotStorage(folder);
        StandInBroker broker = new StandInBroker(first.properties, arguments.number("now"));
        long beganNs = System.nanoTime();
        BucketDelayedDeliveryTracker tracker = broker.newTracker(storage, arguments);
        figures.put("recovery_ms", (System.nanoTime() - beganNs) / 1e6);
        figures.put("recovery_reads", storage.reads.get());
        long recovered = tracker.getNumberOfDelayedMessages();
        figures.put("recovered", recovered);
        tracker.close();
        storage.awaitIdle();
        storage.close();
        return recovered;
    }

    private void drain(BucketDelayedDeliveryTracker tracker, StandInBroker broker, int messages) {
        broker.clock.nowMs = arguments.number("until");
        long beganNs = System.nanoTime();
        long taken = 0;
        long lastRowNs = beganNs;
        // A position may come twice after a merge, and some may never come: it ends when nothing comes for a second.
        while (tracker.getNumberOfDelayedMessages() > 0 && System.nanoTime() - lastRowNs < 1_000_000_000L) {
            int count = tracker.getScheduledMessages(POLL_ROWS).size();
            if (count > 0) {
                taken += count;
                lastRowNs = System.nanoTime();
            } else {
                Thread.onSpinWait();
            }
        }
        figures.put("drain_per_s", taken * 1e9 / (lastRowNs - beganNs));
        figures.put("drained", taken);
    }

    private static long usedHeap() throws InterruptedException {
        Runtime runtime = Runtime.getRuntime();
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(50);
        }
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
