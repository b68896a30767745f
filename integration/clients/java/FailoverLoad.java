import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends to every partition with the Java client at its defaults, and prints a line for each answer, `ack TOPIC/PARTITION` or `error TEXT`, until
 * stdin is closed. Arguments: bootstrap, pause in seconds, TOPIC:PARTITIONS...
 */
public final class FailoverLoad {
    private FailoverLoad() {}

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        long pause = Math.round(Double.parseDouble(args[1]) * 1000);
        CountDownLatch ended = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException e) {
                // the end, too
            }
            ended.countDown();
        });
        reader.setDaemon(true);
        reader.start();
        byte[] value = new byte[100];
        // send blocks when its buffer is full or nothing is known of a partition; each partition has a producer thread of its own so that one
        // that has no leader holds up no other.
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        for (int i = 2; i < args.length; i++) {
            String[] topic = args[i].split(":");
            for (int p = 0; p < Integer.parseInt(topic[1]); p++) {
                int partition = p;
                Thread sender = new Thread(() -> send(producer, topic[0], partition, value, pause, ended));
                sender.setDaemon(true);
                sender.start();
            }
        }
        ended.await();
        Runtime.getRuntime().halt(0);
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, int partition, byte[] value, long pause, CountDownLatch ended) {
        try {
            while (!ended.await(pause, TimeUnit.MILLISECONDS)) {
                producer.send(new ProducerRecord<>(topic, partition, null, value), (at, e) -> {
                    synchronized (System.out) {
                        System.out.println(e == null ? "ack " + topic + "/" + partition : "error " + e.toString().replace('\n', ' '));
                    }
                });
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
