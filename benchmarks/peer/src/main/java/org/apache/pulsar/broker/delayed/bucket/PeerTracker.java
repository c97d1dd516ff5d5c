package org.apache.pulsar.broker.delayed.bucket;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.mledger.Position;

/**
 * Drives Pulsar's own bucket tracker: one request a line on the standard input, one answer a line on the standard
 * output, both JSON.
 *
 * <p>Every request has {@code command}, {@code folder}, {@code now} (ms), and the tracker's settings {@code min} (rows a
 * bucket), {@code step} (ms a segment), {@code segment} (rows a segment) and {@code buckets} (merge above so many).
 *
 * <ul>
 *   <li>{@code write} adds {@code rows} (a CSV file: ledger_id, entry_id, deliver_at_ms), seals and merges as Pulsar
 *       does, and leaves the snapshots and the cursor's properties in the folder.
 *   <li>{@code recover} recovers from such a folder, and hands out what is due at each of the times {@code polls} (ms)
 *       in turn, into {@code out} (a CSV file: time of the poll, ledger_id, entry_id).
 *   <li>{@code bench} measures; see {@link PeerBench}.
 * </ul>
 */
public final class PeerTracker {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String PROPERTIES = "properties.json";

    private PeerTracker() {
    }

    /** Answers until the standard input ends. */
    public static void main(String[] words) throws IOException {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer;
            try {
                answer = answer(new Arguments(JSON.readTree(line)));
            } catch (Exception error) {
                error.printStackTrace();
                answer = Map.of("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        // Pulsar's classes leave threads behind that would keep the process up.
        System.exit(0);
    }

    private static Map<String, Object> answer(Arguments arguments) throws Exception {
        return switch (arguments.text("command")) {
            case "write" -> write(arguments);
            case "recover" -> recover(arguments);
            case "bench" -> new PeerBench(arguments).run();
            default -> throw new IllegalArgumentException("commands: write, recover, bench");
        };
    }

    private static Map<String, Object> write(Arguments arguments) throws Exception {
        Path folder = arguments.path("folder");
        FolderSnapshotStorage storage = new FolderSnapshotStorage(folder);
        StandInBroker broker = new StandInBroker(Map.of(), arguments.number("now"));
        BucketDelayedDeliveryTracker tracker = broker.newTracker(storage, arguments);
        try (BufferedReader rows = Files.newBufferedReader(arguments.path("rows"))) {
            rows.readLine();
            for (String row = rows.readLine(); row != null; row = rows.readLine()) {
                String[] cells = row.split(",");
                boolean isTracked = tracker.addMessage(
                        Long.parseLong(cells[0]), Long.parseLong(cells[1]), Long.parseLong(cells[2]));
                if (!isTracked) {
                    throw new IllegalArgumentException("due already: " + row);
                }
                if (tracker.getLastMutableBucket().size() == 1) {
                    // It has just sealed: with one merge at a time, the next one needs this one's end.
                    storage.awaitQuiet();
                }
            }
        }
        storage.awaitQuiet();
        Files.write(folder.resolve(PROPERTIES), JSON.writeValueAsBytes(broker.properties));
        Map<String, Object> told = new TreeMap<>();
        told.put("buckets", broker.properties.size());
        told.put("created", storage.snapshotsCreated.get());
        told.put("left_in_mutable_bucket", tracker.getLastMutableBucket().size());
        tracker.close();
        return told;
    }

    private static Map<String, Object> recover(Arguments arguments) throws Exception {
        Path folder = arguments.path("folder");
        FolderSnapshotStorage storage = new FolderSnapshotStorage(folder);
        StandInBroker broker = new StandInBroker(readProperties(folder), arguments.number("now"));
        BucketDelayedDeliveryTracker tracker = broker.newTracker(storage, arguments);
        long recovered = tracker.getNumberOfDelayedMessages();
        long drained = 0;
        try (PrintStream out = new PrintStream(Files.newOutputStream(arguments.path("out")), false)) {
            out.println("polled_at_ms,ledger_id,entry_id");
            for (long nowMs : arguments.numbers("polls")) {
                broker.clock.nowMs = nowMs;
                drained += drain(tracker, storage, nowMs, out);
            }
        }
        storage.awaitQuiet();
        Map<String, Object> told = new TreeMap<>();
        told.put("recovered", recovered);
        told.put("drained", drained);
        told.put("left", tracker.getNumberOfDelayedMessages());
        tracker.close();
        return told;
    }

    private static long drain(BucketDelayedDeliveryTracker tracker, FolderSnapshotStorage storage, long nowMs,
                              PrintStream out) {
        long count = 0;
        // An empty poll may only mean that a segment is being loaded.
        for (int emptyPolls = 0; emptyPolls < 2;) {
            var positions = tracker.getScheduledMessages(1_000);
            for (Position position : positions) {
                out.println(nowMs + "," + position.getLedgerId() + "," + position.getEntryId());
            }
            count += positions.size();
            emptyPolls = positions.isEmpty() ? emptyPolls + 1 : 0;
            storage.awaitIdle();
        }
        return count;
    }

    private static Map<String, String> readProperties(Path folder) throws IOException {
        Map<String, String> properties = new TreeMap<>();
        Map<?, ?> stored = JSON.readValue(folder.resolve(PROPERTIES).toFile(), Map.class);
        stored.forEach((key, value) -> properties.put((String) key, (String) value));
        return properties;
    }
}
