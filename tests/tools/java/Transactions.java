import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions as the Java client does them. Says what it saw, one `name=value` line each; the test judges.
 * Arguments: bootstrap servers, what to do, and the rest of that.
 */
public class Transactions {
    static final String END = "end";
    static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        switch (arguments[1]) {
            case "codecs" -> codecs();
            case "fencing" -> fencing();
            case "timeout" -> timeout();
            case "refused" -> refused();
            case "copying" -> copying(arguments[2]);
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    static void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = producer("codec-" + codec, codec, 60_000)) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("one", codec)).get();
                producer.send(new ProducerRecord<>("two", codec)).get();
                producer.commitTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("one", "dropped-" + codec)).get();
                producer.send(new ProducerRecord<>("two", "dropped-" + codec)).get();
                producer.abortTransaction();
            }
        }
        finish("one", "two");
        for (String topic : List.of("one", "two")) {
            say(topic + ".committed", read(topic, "read_committed"));
            say(topic + ".everything", read(topic, "read_uncommitted"));
        }
    }

    static void fencing() throws Exception {
        KafkaProducer<String, String> first = producer("fenced", "none", 60_000);
        first.beginTransaction();
        first.send(new ProducerRecord<>("fencing", "zombie")).get();
        KafkaProducer<String, String> second = producer("fenced", "none", 60_000);
        try {
            first.commitTransaction();
            say("first", "committed");
        } catch (KafkaException refused) {
            say("first", refused.getClass().getSimpleName());
        }
        second.beginTransaction();
        second.send(new ProducerRecord<>("fencing", "second")).get();
        second.commitTransaction();
        finish("fencing");
        say("committed", read("fencing", "read_committed"));
        say("everything", read("fencing", "read_uncommitted"));
        first.close(Duration.ZERO);
        second.close();
    }

    static void timeout() throws Exception {
        KafkaProducer<String, String> slow = producer("slow", "none", 1_000);
        slow.beginTransaction();
        slow.send(new ProducerRecord<>("late", "late")).get();
        finish("late");
        // Readers of committed records get past it only by its abort.
        say("committed", read("late", "read_committed"));
        try {
            slow.commitTransaction();
            say("slow", "committed");
        } catch (KafkaException refused) {
            say("slow", refused.getClass().getSimpleName());
        }
        slow.close(Duration.ZERO);
        try (KafkaProducer<String, String> again = producer("slow", "none", 60_000)) {
            again.beginTransaction();
            again.send(new ProducerRecord<>("later", "again")).get();
            again.commitTransaction();
        }
        finish("later");
        say("later", read("later", "read_committed"));
        say("everything", read("late", "read_uncommitted"));
    }

    /** The broker refuses the second batch, as it does a sequence that was used before the last marker. */
    static void refused() throws Exception {
        try (KafkaProducer<String, String> producer = producer("refused", "none", 60_000)) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("refused", "first")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            try {
                producer.send(new ProducerRecord<>("refused", "second")).get();
                say("second", "sent");
            } catch (java.util.concurrent.ExecutionException refused) {
                say("second", refused.getCause().getClass().getSimpleName());
            }
            try {
                producer.commitTransaction();
                say("commit", "committed");
            } catch (KafkaException refused) {
                say("commit", "refused");
                producer.abortTransaction();
            }
            boolean done = false;
            // A send fails a moment before its producer knows: what follows at once may be told of the same failure.
            long deadline = System.nanoTime() + 20_000_000_000L;
            while (!done && System.nanoTime() < deadline) {
                producer.beginTransaction();
                try {
                    producer.send(new ProducerRecord<>("refused", "third")).get();
                    producer.commitTransaction();
                    done = true;
                } catch (java.util.concurrent.ExecutionException | KafkaException refused) {
                    producer.abortTransaction();
                }
            }
        }
        finish("refused");
        say("committed", read("refused", "read_committed"));
    }

    static void copying(String protocol) throws Exception {
        String group = "copying-" + protocol;
        String source = group + "-in";
        String target = group + "-out";
        TopicPartition place = new TopicPartition(source, 0);
        try (KafkaProducer<String, String> plain = new KafkaProducer<>(producerSettings("none"))) {
            for (int number = 0; number < 60; number++) {
                plain.send(new ProducerRecord<>(source, Integer.toString(number)));
            }
        }
        try (KafkaProducer<String, String> producer = producer(group, "none", 60_000)) {
            int done = 0;
            boolean dropped = false;
            while (done < 60) {
                Properties settings = consumerSettings("read_committed");
                settings.put("group.id", group);
                settings.put("group.protocol", protocol);
                settings.put("max.poll.records", "20");
                try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
                    consumer.subscribe(List.of(source));
                    while (done < 60) {
                        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                        if (records.isEmpty()) {
                            continue;
                        }
                        producer.beginTransaction();
                        for (ConsumerRecord<String, String> record : records) {
                            producer.send(new ProducerRecord<>(target, record.value()));
                        }
                        OffsetAndMetadata position = new OffsetAndMetadata(consumer.position(place));
                        producer.sendOffsetsToTransaction(Map.of(place, position), consumer.groupMetadata());
                        if (!dropped) {
                            dropped = true;
                            producer.flush();
                            producer.abortTransaction();
                            break;  // Another member goes on where the group stands.
                        }
                        producer.commitTransaction();
                        done += records.count();
                    }
                    if (done >= 60) {
                        say("offset", consumer.committed(java.util.Set.of(place)).get(place).offset());
                    }
                }
            }
        }
        finish(target);
        say("committed", read(target, "read_committed"));
        say("everything", read(target, "read_uncommitted").size());
    }

    /** The last record of each topic, outside of transactions. */
    static void finish(String... topics) throws Exception {
        try (KafkaProducer<String, String> plain = new KafkaProducer<>(producerSettings("none"))) {
            for (String topic : topics) {
                plain.send(new ProducerRecord<>(topic, END)).get();
            }
        }
    }

    /** All values of a topic before its last record. */
    static List<String> read(String topic, String isolation) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consumerSettings(isolation))) {
            List<TopicPartition> place = List.of(new TopicPartition(topic, 0));
            consumer.assign(place);
            consumer.seekToBeginning(place);
            long deadline = System.nanoTime() + 20_000_000_000L;
            while (System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.value().equals(END)) {
                        return values;
                    }
                    values.add(record.value());
                }
            }
        }
        throw new IllegalStateException("no end of " + topic + " behind " + values);
    }

    static KafkaProducer<String, String> producer(String transactionalId, String codec, int timeoutMs) {
        Properties settings = producerSettings(codec);
        settings.put("transactional.id", transactionalId);
        settings.put("transaction.timeout.ms", Integer.toString(timeoutMs));
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        return producer;
    }

    static Properties producerSettings(String codec) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("compression.type", codec);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        return settings;
    }

    static Properties consumerSettings(String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("isolation.level", isolation);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        return settings;
    }

    static void say(String name, Object value) {
        System.out.println(name + "=" + value);
    }
}
