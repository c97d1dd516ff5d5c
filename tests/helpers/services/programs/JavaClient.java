import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.policies.data.AuthAction;

/**
 * A small program on the Java client, for the tests of foreign clients: one task, one JSON line; see go_client/main.go.
 *
 * <p>One task more: "grants" gives role grants for namespace and topic with Pulsar's admin client, shows and takes them.
 */
public final class JavaClient {
    public static final class Task {
        public String task;
        public String url;
        public String topic;
        public String tokenFile;
        public String trustCertsFile;
        public String certFile;
        public String keyFile;
        public int count;
        public long delayMs;
        public long holdMs;
        public String webUrl;
        public String role;
    }

    private final Task asked;
    private int sent;
    private int received;
    private int early;
    private String refused = "";

    private JavaClient(Task asked) {
        this.asked = asked;
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        JavaClient program = new JavaClient(json.readValue(arguments[0], Task.class));
        if (program.asked.task.equals("grants")) {
            System.out.println(json.writeValueAsString(program.grants()));
            return;
        }
        String error = "";
        try (PulsarClient client = program.connect()) {
            program.run(client);
        } catch (PulsarClientException failure) {
            error = failure.getClass().getSimpleName() + ": " + failure.getMessage();
        }
        Map<String, Object> found = new TreeMap<>(Map.of(
                "error", error, "sent", program.sent, "received", program.received, "early", program.early));
        if (!program.refused.isEmpty()) {
            found.put("refused", program.refused);
        }
        System.out.println(json.writeValueAsString(found));
    }

    private void run(PulsarClient client) throws Exception {
        if (asked.task.equals("subscribe")) {
            subscribe(client).close();
            return;
        }
        if (asked.task.equals("roundtrip")) {
            roundtrip(client);
            return;
        }
        if (asked.task.equals("steady")) {
            steady(client);
            return;
        }
        if (asked.task.equals("refused")) {
            refused(client);
            return;
        }
        try (Producer<byte[]> producer = producer(client)) {
            long end = System.currentTimeMillis() + asked.holdMs;
            while (asked.task.equals("hold") && System.currentTimeMillis() < end) {
                producer.send(new byte[] {'x'});
                sent++;
                Thread.sleep(50);
            }
        }
    }

    private Map<String, Map<String, Set<AuthAction>>> grants() throws Exception {
        Map<String, Map<String, Set<AuthAction>>> shown = new TreeMap<>();
        String namespace = "public/default";
        try (PulsarAdmin admin = PulsarAdmin.builder()
                .serviceHttpUrl(asked.webUrl).authentication(AuthenticationFactory.token(this::token)).build()) {
            admin.namespaces().grantPermissionOnNamespace(namespace, asked.role, EnumSet.of(AuthAction.consume));
            admin.topics().grantPermission(asked.topic, asked.role, EnumSet.of(AuthAction.produce));
            shown.put("namespace", admin.namespaces().getPermissions(namespace));
            shown.put("topic", admin.topics().getPermissions(asked.topic));
            admin.namespaces().revokePermissionsOnNamespace(namespace, asked.role);
            shown.put("topic alone", admin.topics().getPermissions(asked.topic));
            admin.topics().revokePermissions(asked.topic, asked.role);
            shown.put("nothing", admin.topics().getPermissions(asked.topic));
        }
        return shown;
    }

    private PulsarClient connect() throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder()
                .serviceUrl(asked.url)
                .operationTimeout(10, TimeUnit.SECONDS)
                .lookupTimeout(10, TimeUnit.SECONDS)
                .connectionTimeout(5, TimeUnit.SECONDS);
        if (asked.trustCertsFile != null) {
            builder.tlsTrustCertsFilePath(asked.trustCertsFile).enableTlsHostnameVerification(true);
        }
        if (asked.tokenFile != null) {
            builder.authentication(AuthenticationFactory.token(this::token));
        }
        if (asked.certFile != null) {
            builder.authentication(AuthenticationFactory.TLS(asked.certFile, asked.keyFile));
        }
        return builder.build();
    }

    private String token() {
        try {
            return Files.readString(Path.of(asked.tokenFile)).strip();
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private Producer<byte[]> producer(PulsarClient client) throws PulsarClientException {
        return client.newProducer(Schema.BYTES)
                .topic(asked.topic)
                .sendTimeout(10, TimeUnit.SECONDS)
                .enableBatching(!asked.task.equals("refused"))
                .create();
    }

    private Consumer<byte[]> subscribe(PulsarClient client) throws PulsarClientException {
        return client.newConsumer(Schema.BYTES)
                .topic(asked.topic)
                .subscriptionName("sub")
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    private void refused(PulsarClient client) throws PulsarClientException {
        try (Producer<byte[]> producer = producer(client)) {
            List<CompletableFuture<MessageId>> answers = new ArrayList<>();
            for (int i = 0; i <= 2 * asked.count; i++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(("" + i).getBytes());
                if (i == asked.count) {
                    message.deliverAfter(asked.delayMs, TimeUnit.MILLISECONDS);
                }
                answers.add(message.sendAsync());
            }
            for (int i = 0; i <= 2 * asked.count; i++) {
                try {
                    answers.get(i).join();
                    sent++;
                } catch (CompletionException failure) {
                    refused = i == asked.count ? failure.getCause().getMessage() : refused;
                }
            }
            for (int i = 0; i < asked.count; i++) {
                producer.send(new byte[] {'x'});
                sent++;
            }
        }
    }

    private void steady(PulsarClient client) throws Exception {
        int keys = 5;
        try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(asked.topic).subscriptionName("steady")
                        .subscriptionType(SubscriptionType.Key_Shared).subscribe();
                Producer<byte[]> producer = client.newProducer(Schema.BYTES).topic(asked.topic)
                        .sendTimeout(0, TimeUnit.SECONDS).enableBatching(false).create()) {
            CompletableFuture<Integer> sending = CompletableFuture.supplyAsync(() -> {
                long end = System.currentTimeMillis() + asked.holdMs;
                int number = 0;
                try {
                    for (; System.currentTimeMillis() < end; number++) {
                        producer.newMessage().key("" + number % keys).value(("" + number).getBytes()).send();
                    }
                } catch (PulsarClientException failure) {
                    throw new CompletionException(failure);
                }
                return number;
            });
            Set<Integer> seen = new HashSet<>();
            int[] last = new int[keys];
            while (!sending.isDone() || seen.size() < sending.join()) {
                Message<byte[]> message = consumer.receive(500, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                int number = Integer.parseInt(new String(message.getValue()));
                if (seen.add(number)) {
                    early += number < last[number % keys] ? 1 : 0;
                    last[number % keys] = Math.max(number, last[number % keys]);
                }
                consumer.acknowledge(message);
            }
            sent = sending.join();
            received = seen.size();
        }
    }

    private void roundtrip(PulsarClient client) throws PulsarClientException {
        try (Consumer<byte[]> consumer = subscribe(client); Producer<byte[]> producer = producer(client)) {
            long due = System.currentTimeMillis() + asked.delayMs;
            for (; sent < asked.count; sent++) {
                producer.newMessage().key("" + sent).value(("" + sent).getBytes()).deliverAt(due).send();
            }
            while (received < asked.count) {
                Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
                if (message == null) {
                    throw new PulsarClientException("nothing comes");
                }
                if (System.currentTimeMillis() < due) {
                    early++;
                }
                received++;
                consumer.acknowledge(message);
            }
        }
    }
}
