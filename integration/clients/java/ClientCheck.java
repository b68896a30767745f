import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client behind the line protocol of the client tests; integration/clients/README.md describes it. */
public final class ClientCheck {
    private static final Base64.Encoder ENCODER = Base64.getEncoder();
    private static final Base64.Decoder DECODER = Base64.getDecoder();
    private static final Map<String, Member> MEMBERS = new HashMap<>();
    private static String bootstrap;

    private ClientCheck() {}

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok\t" + carryOut(line.split("\t", -1));
            } catch (ExecutionException e) {
                answer = "error\t" + oneLine(e.getCause());
            } catch (Exception e) {
                answer = "error\t" + oneLine(e);
            }
            out.println(answer);
        }
    }

    private static String oneLine(Throwable e) {
        return e.toString().replaceAll("\\s+", " ");
    }

    private static Object carryOut(String[] a) throws Exception {
        switch (a[0]) {
            case "metadata": {
                try (Admin admin = admin()) {
                    return admin.describeTopics(List.of(a[1])).allTopicNames().get(20, TimeUnit.SECONDS).get(a[1]).partitions().size();
                }
            }
            case "create": {
                try (Admin admin = admin()) {
                    NewTopic topic = new NewTopic(a[1], Optional.of(Integer.parseInt(a[2])), Optional.empty());
                    admin.createTopics(List.of(topic)).all().get(20, TimeUnit.SECONDS);
                    return "";
                }
            }
            case "delete": {
                try (Admin admin = admin()) {
                    admin.deleteTopics(List.of(a[1])).all().get(20, TimeUnit.SECONDS);
                    return "";
                }
            }
            case "offset": {
                TopicPartition tp = new TopicPartition(a[1], Integer.parseInt(a[2]));
                long at = Long.parseLong(a[3]);
                OffsetSpec spec = at == -1 ? OffsetSpec.latest() : at == -2 ? OffsetSpec.earliest() : OffsetSpec.forTimestamp(at);
                try (Admin admin = admin()) {
                    return admin.listOffsets(Map.of(tp, spec)).partitionResult(tp).get(20, TimeUnit.SECONDS).offset();
                }
            }
            case "produce":
                return produce(new TopicPartition(a[1], Integer.parseInt(a[2])), a[3], a[4].equals("true"), Path.of(a[5]));
            case "consume":
                return consume(new TopicPartition(a[1], Integer.parseInt(a[2])), Long.parseLong(a[3]), Integer.parseInt(a[4]), Path.of(a[5]));
            case "group":
                return group(a[1], a[2], a[3], Integer.parseInt(a[4]), Path.of(a[5]));
            case "member":
                Member member = new Member(a[2], a[3], a[4], a[5], a[6]);
                MEMBERS.put(a[1], member);
                member.start();
                return "";
            case "heard":
                return MEMBERS.get(a[1]).heard();
            case "leave":
                return MEMBERS.remove(a[1]).leave();
            default:
                throw new IllegalArgumentException("unknown command " + a[0]);
        }
    }

    private static Admin admin() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    private static int produce(TopicPartition tp, String codec, boolean idempotent, Path file) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("acks", "all");
        p.put("compression.type", codec);
        p.put("enable.idempotence", idempotent);
        p.put("max.in.flight.requests.per.connection", 1);
        p.put("max.request.size", 10 << 20);
        p.put("batch.size", 512 << 10);
        p.put("linger.ms", 5);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String line : Files.readAllLines(file)) {
                String[] f = line.split("\t", -1);
                List<Header> headers = new ArrayList<>();
                for (int i = 4; i < f.length; i += 2) {
                    headers.add(new RecordHeader(f[i], decode(f[i + 1])));
                }
                sent.add(producer.send(new ProducerRecord<>(tp.topic(), tp.partition(), Long.parseLong(f[1]), decode(f[2]), decode(f[3]), headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> s : sent) {
                s.get(20, TimeUnit.SECONDS);
            }
        }
        return sent.size();
    }

    private static int consume(TopicPartition tp, long from, int n, Path file) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", false);
        int count = 0;
        long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                BufferedWriter out = Files.newBufferedWriter(file)) {
            consumer.assign(List.of(tp));
            consumer.seek(tp, from);
            while (count < n && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    if (count == n) {
                        break;
                    }
                    out.write(r.offset() + "\t" + r.timestamp() + "\t" + encode(r.key()) + "\t" + encode(r.value()));
                    for (Header h : r.headers()) {
                        out.write("\t" + h.key() + "\t" + encode(h.value()));
                    }
                    out.write("\n");
                    count++;
                }
            }
        }
        return count;
    }

    /** Reads n records as a member of a group, commits just those, and leaves. */
    private static int group(String group, String protocol, String topic, int n, Path file) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("group.id", group);
        p.put("group.protocol", protocol);
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", false);
        p.put("max.poll.records", n);
        int count = 0;
        long end = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                BufferedWriter out = Files.newBufferedWriter(file)) {
            consumer.subscribe(List.of(topic));
            while (count < n && System.nanoTime() < end) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    if (count == n) {
                        break;
                    }
                    out.write(r.offset() + "\t" + r.timestamp() + "\t" + encode(r.key()) + "\t" + encode(r.value()) + "\n");
                    next.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1, r.leaderEpoch(), ""));
                    count++;
                }
            }
            consumer.commitSync(next);
        }
        return count;
    }

    /** A member that reads and commits until it is told to leave. */
    private static final class Member extends Thread {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final String topic;
        private final String commit;
        private final Map<TopicPartition, Long> next = new HashMap<>();
        private final List<String> jumps = new ArrayList<>();
        private volatile boolean leaving;
        private volatile Exception failure;

        Member(String group, String protocol, String assignor, String topic, String commit) {
            this.topic = topic;
            this.commit = commit;
            Properties p = new Properties();
            p.put("bootstrap.servers", bootstrap);
            p.put("group.id", group);
            p.put("group.protocol", protocol);
            if (protocol.equals("classic")) {
                String name = assignor.equals("range") ? "RangeAssignor" : "CooperativeStickyAssignor";
                p.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + name);
                p.put("heartbeat.interval.ms", 500);
                p.put("session.timeout.ms", 10_000);
            }
            p.put("auto.offset.reset", "earliest");
            p.put("enable.auto.commit", commit.equals("auto"));
            p.put("auto.commit.interval.ms", 50);
            p.put("max.poll.records", 3);
            p.put("max.partition.fetch.bytes", 512);
            consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        }

        @Override
        public void run() {
            try (consumer) {
                consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                    @Override
                    public void onPartitionsRevoked(Collection<TopicPartition> gone) {
                        forget(gone);
                    }

                    @Override
                    public void onPartitionsAssigned(Collection<TopicPartition> come) {
                        // what is read of them tells
                    }
                });
                while (!leaving) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                    for (ConsumerRecord<byte[], byte[]> r : records) {
                        heard(new TopicPartition(r.topic(), r.partition()), r.offset());
                    }
                    if (records.isEmpty()) {
                        continue;
                    }
                    if (commit.equals("sync")) {
                        try {
                            consumer.commitSync();
                        } catch (CommitFailedException | RebalanceInProgressException e) {
                            // as programs do: the next poll brings it back
                        }
                    } else if (commit.equals("async")) {
                        consumer.commitAsync();
                    }
                    Thread.sleep(20);
                }
            } catch (Exception e) {
                failure = e;
            }
        }

        private synchronized void forget(Collection<TopicPartition> gone) {
            next.keySet().removeAll(gone);
        }

        private synchronized void heard(TopicPartition tp, long offset) {
            Long expected = next.put(tp, offset + 1);
            if (expected == null || expected != offset) {
                jumps.add(tp.partition() + ":" + offset);
            }
        }

        synchronized String heard() throws Exception {
            if (failure != null) {
                throw failure;
            }
            String all = String.join(",", jumps);
            jumps.clear();
            return all;
        }

        String leave() throws Exception {
            leaving = true;
            join();
            return heard();
        }
    }

    private static String encode(byte[] b) {
        return b == null ? "-" : ENCODER.encodeToString(b);
    }

    private static byte[] decode(String s) {
        return s.equals("-") ? null : DECODER.decode(s);
    }
}
