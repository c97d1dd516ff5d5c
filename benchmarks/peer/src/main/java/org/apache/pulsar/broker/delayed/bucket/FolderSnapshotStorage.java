package org.apache.pulsar.broker.delayed.bucket;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.broker.delayed.proto.SnapshotMetadata;
import org.apache.pulsar.broker.delayed.proto.SnapshotSegment;

/**
 * Snapshots as files of one folder, which Postdate's tests and benchmarks read and write too.
 *
 * <p>{@code <bucket id>.snapshot} holds the number of entries, the length of each, and then the entries one after the
 * other. Numbers have four bytes, the most significant first. Entry 0 is the metadata, the others are the segments.
 * One thread does all the work, as a bookie's client would, so the tracker's thread waits for no file. Nothing is
 * synced: what is measured is the tracker.
 */
final class FolderSnapshotStorage implements BucketSnapshotStorage {
    private static final int NUMBER_BYTES = 4;

    /** Where each entry of a snapshot begins, and where the last one ends. */
    private final Map<Long, long[]> offsets = new ConcurrentHashMap<>();
    private final Path folder;
    private final ExecutorService worker = Executors.newSingleThreadExecutor(task -> {
        Thread thread = new Thread(task, "snapshots");
        thread.setDaemon(true);
        return thread;
    });
    private final AtomicLong nextBucketId = new AtomicLong();
    private final AtomicLong unfinished = new AtomicLong();

    final AtomicLong rowsWritten = new AtomicLong();
    final AtomicLong snapshotsCreated = new AtomicLong();
    final AtomicLong reads = new AtomicLong();

    FolderSnapshotStorage(Path folder) throws IOException {
        this.folder = folder;
        Files.createDirectories(folder);
        try (var files = Files.newDirectoryStream(folder, "*.snapshot")) {
            for (Path file : files) {
                long bucketId = Long.parseLong(file.getFileName().toString().replace(".snapshot", ""));
                nextBucketId.accumulateAndGet(bucketId + 1, Math::max);
            }
        }
    }

    @Override
    public CompletableFuture<Long> createBucketSnapshot(SnapshotMetadata metadata, List<SnapshotSegment> segments,
                                                        String bucketKey, String topicName, String cursorName) {
        return run(() -> {
            long bucketId = nextBucketId.getAndIncrement();
            List<byte[]> entries = new ArrayList<>();
            entries.add(metadata.toByteArray());
            long rows = 0;
            for (SnapshotSegment segment : segments) {
                entries.add(segment.toByteArray());
                rows += segment.getIndexesCount();
            }
            try (var out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file(bucketId)), 1 << 16))) {
                out.writeInt(entries.size());
                for (byte[] entry : entries) {
                    out.writeInt(entry.length);
                }
                for (byte[] entry : entries) {
                    out.write(entry);
                }
            }
            rowsWritten.addAndGet(rows);
            snapshotsCreated.incrementAndGet();
            return bucketId;
        });
    }

    @Override
    public CompletableFuture<SnapshotMetadata> getBucketSnapshotMetadata(long bucketId) {
        return run(() -> {
            SnapshotMetadata metadata = new SnapshotMetadata();
            metadata.parseFrom(readEntries(bucketId, 0, 0).get(0));
            return metadata;
        });
    }

    @Override
    public CompletableFuture<List<SnapshotSegment>> getBucketSnapshotSegment(long bucketId, long firstEntry, long lastEntry) {
        return run(() -> {
            List<SnapshotSegment> segments = new ArrayList<>();
            for (byte[] entry : readEntries(bucketId, firstEntry, lastEntry)) {
                SnapshotSegment segment = new SnapshotSegment();
                segment.parseFrom(entry);
                segments.add(segment);
            }
            return segments;
        });
    }

    @Override
    public CompletableFuture<Long> getBucketSnapshotLength(long bucketId) {
        return run(() -> {
            long[] starts = offsetsOf(bucketId);
            return starts[starts.length - 1] - starts[0];
        });
    }

    @Override
    public CompletableFuture<Void> deleteBucketSnapshot(long bucketId) {
        return run(() -> {
            Files.deleteIfExists(file(bucketId));
            offsets.remove(bucketId);
            return null;
        });
    }

    @Override
    public void start() {
    }

    @Override
    public void close() {
        worker.shutdown();
    }

    /** Returns once nothing is under way, callbacks included. */
    void awaitIdle() {
        while (unfinished.get() > 0) {
            Thread.onSpinWait();
        }
    }

    /** Returns once nothing has been under way for a moment: a merge goes from one call to the next. */
    void awaitQuiet() throws InterruptedException {
        for (int quietTimes = 0; quietTimes < 20;) {
            quietTimes = unfinished.get() == 0 ? quietTimes + 1 : 0;
            Thread.sleep(5);
        }
    }

    long bytesAtRest() throws IOException {
        long bytes = 0;
        try (var files = Files.newDirectoryStream(folder, "*.snapshot")) {
            for (Path file : files) {
                bytes += Files.size(file);
            }
        }
        return bytes;
    }

    private interface Work<T> {
        T run() throws IOException;
    }

    private <T> CompletableFuture<T> run(Work<T> work) {
        unfinished.incrementAndGet();
        CompletableFuture<T> result = CompletableFuture.supplyAsync(() -> {
            try {
                return work.run();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }, worker);
        // After the tracker's own callbacks, which may start the next call.
        result.whenComplete((value, error) -> worker.execute(unfinished::decrementAndGet));
        return result;
    }

    private List<byte[]> readEntries(long bucketId, long firstEntry, long lastEntry) throws IOException {
        reads.incrementAndGet();
        long[] starts = offsetsOf(bucketId);
        int first = (int) firstEntry;
        int last = (int) Math.min(lastEntry, starts.length - 2);
        List<byte[]> entries = new ArrayList<>();
        if (first > last) {
            return entries;
        }
        try (FileChannel channel = FileChannel.open(file(bucketId))) {
            ByteBuffer bytes = read(channel, starts[first], (int) (starts[last + 1] - starts[first]));
            for (int number = first; number <= last; number++) {
                byte[] entry = new byte[(int) (starts[number + 1] - starts[number])];
                bytes.get(entry);
                entries.add(entry);
            }
        }
        return entries;
    }

    /** Tells where the entries begin; read at the first use only, as a bookie knows it too. */
    private long[] offsetsOf(long bucketId) throws IOException {
        long[] known = offsets.get(bucketId);
        if (known != null) {
            return known;
        }
        try (FileChannel channel = FileChannel.open(file(bucketId))) {
            int count = read(channel, 0, NUMBER_BYTES).getInt();
            ByteBuffer lengths = read(channel, NUMBER_BYTES, NUMBER_BYTES * count);
            long[] starts = new long[count + 1];
            starts[0] = NUMBER_BYTES * (count + 1L);
            for (int number = 0; number < count; number++) {
                starts[number + 1] = starts[number] + lengths.getInt();
            }
            offsets.put(bucketId, starts);
            return starts;
        } catch (NoSuchFileException error) {
            throw new IOException("there is no snapshot " + bucketId, error);
        }
    }

    private static ByteBuffer read(FileChannel channel, long start, int length) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(length);
        while (bytes.hasRemaining()) {
            if (channel.read(bytes, start + bytes.position()) < 0) {
                throw new IOException("the file ends too early");
            }
        }
        return bytes.flip();
    }

    private Path file(long bucketId) {
        return folder.resolve(bucketId + ".snapshot");
    }
}
