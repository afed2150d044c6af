// sarama on a cluster whose brokers come and go: an idempotent producer, transactions of which some are aborted, and a
// group that reads what is committed. It prints what the group found.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const partitions, replicas = 3, 3

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func configuration() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.ClientID = "sarama"
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Producer.Retry.Max = 100
	config.Producer.Transaction.Retry.Max = 200
	config.Metadata.Retry.Max = 100
	config.Net.MaxOpenRequests = 1 // as sarama asks of idempotent producers
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	return config
}

func message(topic, text string) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(text), Value: sarama.StringEncoder(text)}
}

func produce(servers []string, topic string, count int, pause time.Duration) {
	producer, err := sarama.NewSyncProducer(servers, configuration())
	if err != nil {
		fail("producer", err)
	}
	defer producer.Close()
	for number := 0; number < count; number++ {
		if _, _, err := producer.SendMessage(message(topic, strconv.Itoa(number))); err != nil {
			fail("send "+strconv.Itoa(number), err)
		}
		time.Sleep(pause)
	}
}

// transact commits each number once: what was aborted, or could not be committed, comes again.
func transact(servers []string, topic string, count int, pause time.Duration) {
	config := configuration()
	config.Producer.Transaction.ID = topic
	open := func() sarama.SyncProducer {
		producer, err := sarama.NewSyncProducer(servers, config)
		if err != nil {
			fail("transactional producer", err)
		}
		return producer
	}
	producer := open()
	for number, try := 0, 0; number < count; try++ {
		if err := producer.BeginTxn(); err != nil {
			fail("begin", err)
		}
		_, _, err := producer.SendMessage(message(topic, strconv.Itoa(number)))
		if err == nil && try%4 != 3 {
			if err = producer.CommitTxn(); err == nil {
				number++
				time.Sleep(pause)
				continue
			}
			// Nobody knows. A new producer with the same id waits for the end, and what is there tells.
			fail("commit", err)
		}
		if err := producer.AbortTxn(); err != nil {
			producer.Close()
			producer = open()
		}
	}
	producer.Close()
}

type reader struct {
	found chan string
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.found <- fmt.Sprintf("%s-%d-%d %s", message.Topic, message.Partition, message.Offset, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func consume(ctx context.Context, servers []string, topics []string, found chan string) {
	group, err := sarama.NewConsumerGroup(servers, "sarama-readers", configuration())
	if err != nil {
		fail("group", err)
	}
	defer group.Close()
	r := &reader{found: found}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, topics, r); err != nil {
			time.Sleep(200 * time.Millisecond) // as its documentation says: join again
		}
	}
}

func main() {
	servers := strings.Split(os.Args[1], ",")
	count, _ := strconv.Atoi(os.Args[2])
	pause, _ := time.ParseDuration(os.Args[3])
	admin, err := sarama.NewClusterAdmin(servers, configuration())
	if err != nil {
		fail("admin", err)
	}
	topics := []string{"sarama-plain", "sarama-ledger"}
	for _, topic := range topics {
		detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: replicas}
		if err := admin.CreateTopic(topic, detail, false); err != nil {
			fail("create "+topic, err)
		}
	}
	ctx, enough := context.WithTimeout(context.Background(), 4*time.Minute)
	found := make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		consume(ctx, servers, topics, found)
		close(ended)
	}()
	written := make(chan struct{})
	go func() {
		produce(servers, topics[0], count, pause)
		written <- struct{}{}
	}()
	go func() {
		transact(servers, topics[1], count, pause)
		written <- struct{}{}
	}()
	seen := map[string]bool{} // by place: a group may read again what it has not committed
	last := time.NewTimer(time.Hour)
	for left := 2; ; {
		select {
		case place := <-found:
			seen[place] = true
			if left == 0 && len(seen) >= 2*count {
				last.Reset(3 * time.Second) // whatever is there twice comes soon
			}
		case <-written:
			left--
			if left == 0 {
				last.Reset(30 * time.Second)
			}
		case <-last.C:
			enough()
			<-ended
			values := []string{}
			for place := range seen {
				_, value, _ := strings.Cut(place, " ")
				topic, _, _ := strings.Cut(place, " ")
				values = append(values, topic[:strings.LastIndex(topic[:strings.LastIndex(topic, "-")], "-")]+" "+value)
			}
			json.NewEncoder(os.Stdout).Encode(values)
			return
		case <-ctx.Done():
			fail("reading", fmt.Errorf("%d of %d after 4 minutes", len(seen), 2*count))
		}
	}
}
