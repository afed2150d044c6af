import java.util.List;
import java.util.TreeMap;
import java.util.TreeSet;
import kafka.zk.KafkaZkClient;
import kafka.zk.AdminZkClient;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.zookeeper.client.ZKClientConfig;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Prints what Apache Kafka's own client of ZooKeeper reads there, in the words of its own classes. */
public class ReadZnodes {
    public static void main(String[] arguments) throws Exception {
        KafkaZkClient client = KafkaZkClient.apply(
            arguments[0], false, 30000, 30000, 10, Time.SYSTEM, "judge", new ZKClientConfig(),
            "kafka.server", "SessionExpireListener", false, false);
        try {
            System.out.println("cluster " + client.getClusterId().get());
            System.out.println("controller " + client.getControllerId().get());
            System.out.println("controller epoch " + client.getControllerEpoch().get()._1());
            CollectionConverters.asJava(client.getAllBrokersInCluster()).forEach(broker ->
                System.out.println("broker " + broker.id() + " " + broker.endPoints().mkString(",")
                    + " rack " + broker.rack()));
            AdminZkClient admin = new AdminZkClient(client, Option.empty());
            for (String topic : new TreeSet<>(CollectionConverters.asJava(client.getAllTopicsInCluster(false)))) {
                scala.collection.immutable.Set<String> names =
                    CollectionConverters.asScala(java.util.Set.of(topic)).<String>toSet();
                CollectionConverters.asJava(client.getReplicaAssignmentAndTopicIdForTopics(names)).forEach(found -> {
                    System.out.println("topic " + found.topic() + " id " + found.topicId().get());
                    CollectionConverters.asJava(found.assignment()).forEach((partition, replicas) ->
                        System.out.println("replicas " + partition + " " + replicas.replicas().mkString(",")
                            + " adding " + replicas.addingReplicas().mkString(",")
                            + " removing " + replicas.removingReplicas().mkString(",")));
                    CollectionConverters.asJava(found.assignment()).forEach((partition, replicas) -> {
                        var state = CollectionConverters.asJava(client.getTopicPartitionStates(
                            CollectionConverters.asScala(List.of(partition)).toSeq())).get(partition);
                        System.out.println("state " + partition + " leader " + state.leaderAndIsr().leader()
                            + " epoch " + state.leaderAndIsr().leaderEpoch()
                            + " isr " + state.leaderAndIsr().isr().mkString(",")
                            + " controller epoch " + state.controllerEpoch());
                    });
                });
                System.out.println("settings " + topic + " " + new TreeMap<>(admin.fetchEntityConfig("topics", topic)));
            }
            CollectionConverters.asJava(admin.fetchAllEntityConfigs("brokers")).forEach((broker, settings) ->
                System.out.println("broker settings " + broker + " " + new TreeMap<>(settings)));
            Option<byte[]> block = client.getDataAndVersion("/latest_producer_id_block")._1();
            var ids = kafka.zk.ProducerIdBlockZNode.parseProducerIdBlockData(block.get());
            System.out.println("producer ids " + ids.firstProducerId() + ".." + ids.lastProducerId());
        } finally {
            client.close();
        }
    }
}
