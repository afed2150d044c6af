import java.io.FileReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client through each lock: a topic, two transactions of which one is aborted, and a group that reads.
 * Arguments: properties files, one for each way in. Says `NAME=what was read`, or `NAME=!the error` where it is kept out.
 */
public class Through {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            String name = Path.of(file).getFileName().toString().replace(".properties", "");
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) {
                settings.load(reader);
            }
            settings.put("default.api.timeout.ms", 30_000);
            try {
                System.out.println(name + "=" + String.join(",", through(settings, "java-" + name)));
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println(name + "=!" + cause.getClass().getSimpleName());
            }
        }
    }

    static List<String> through(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
        Properties writing = with(settings, "transactional.id", topic);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "aborted"));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(number)));
            }
            producer.commitTransaction();
        }
        Properties reading = with(with(settings, "group.id", topic), "isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + 30_000;
            while (found.size() < 10 && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    found.add(record.value());
                }
            }
            consumer.commitSync();
        }
        return found;
    }

    static Properties with(Properties settings, String name, Object value) {
        Properties more = new Properties();
        more.putAll(settings);
        more.put(name, value);
        return more;
    }
}
