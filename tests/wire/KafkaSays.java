import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/** Answers from Apache Kafka's own classes. One question to a line of standard input, one answer to a line of output. */
public class KafkaSays {
    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "errors" -> {
                for (Errors error : Errors.values()) {
                    System.out.printf("%d %s %b%n", error.code(), error.name(),
                        error.exception() instanceof RetriableException);
                }
            }
            case "apis" -> {
                for (ApiKeys api : ApiKeys.values()) {
                    if (api.messageType.highestSupportedVersion(false) >= 0) {
                        System.out.printf("%d %s %d %d%n", api.id, api.messageType.name, api.oldestVersion(),
                            api.latestVersion(false));
                    }
                }
            }
            case "encode" -> encode();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    /** A line is a class, a version and the message as JSON, with tabs between them; the answer is its bytes in hex. */
    private static void encode() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 3);
            short version = Short.parseShort(parts[1]);
            Method read = Class.forName(parts[0] + "JsonConverter").getMethod("read", JsonNode.class, short.class);
            Message message = (Message) read.invoke(null, json.readTree(parts[2]), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer bytes = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(bytes), cache, version);
            System.out.println(HexFormat.of().formatHex(Arrays.copyOf(bytes.array(), bytes.position())));
        }
    }
}
