// The Go client sarama through each lock: a topic, plain records, two transactions of which one is aborted, and a group
// that reads.
package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
	"semel.example/goclient/ways"
)

// exchange is SCRAM as users of sarama bring it: sarama has only the place for it.
type exchange struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (e *exchange) Begin(user, password, authorization string) error {
	client, err := e.hash.NewClient(user, password, authorization)
	if err != nil {
		return err
	}
	e.ClientConversation = client.NewConversation()
	return nil
}

func configuration(w ways.Way) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.ClientID = "sarama"
	config.Metadata.Retry.Max = 1
	config.Metadata.Retry.Backoff = 20 * time.Millisecond
	config.Producer.Transaction.Retry.Backoff = 20 * time.Millisecond
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	found, err := w.TLS()
	if err != nil {
		return nil, err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = found != nil, found
	if w.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(w.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = w.User, w.Password
		hash := scram.SHA512
		if w.Mechanism == sarama.SASLTypeSCRAMSHA256 {
			hash = scram.SHA256
		}
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: hash} }
	}
	return config, nil
}

func messages(topic string, texts ...string) []*sarama.ProducerMessage {
	var made []*sarama.ProducerMessage
	for _, text := range texts {
		made = append(made, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(text)})
	}
	return made
}

func numbers(first, end int) []string {
	var made []string
	for number := first; number < end; number++ {
		made = append(made, fmt.Sprint(number))
	}
	return made
}

func produce(client sarama.Client, topic string) error {
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	defer producer.Close()
	return producer.SendMessages(messages(topic, numbers(0, 5)...))
}

func transact(w ways.Way, topic string) error {
	config, err := configuration(w)
	if err != nil {
		return err
	}
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = topic
	config.Net.MaxOpenRequests = 1 // as sarama asks of idempotent producers
	producer, err := sarama.NewSyncProducer(strings.Split(w.Servers, ","), config)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	if err := producer.SendMessages(messages(topic, "aborted", "aborted")); err != nil {
		return err
	}
	if err := producer.AbortTxn(); err != nil {
		return err
	}
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	if err := producer.SendMessages(messages(topic, numbers(5, 10)...)); err != nil {
		return err
	}
	return producer.CommitTxn()
}

// reader is a member of a group that leaves it after ten records.
type reader struct {
	found []string
	done  context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.found = append(r.found, string(message.Value))
		session.MarkMessage(message, "")
		if len(r.found) == 10 {
			session.Commit()
			r.done()
		}
	}
	return nil
}

func consume(ctx context.Context, client sarama.Client, topic string) ([]string, error) {
	group, err := sarama.NewConsumerGroupFromClient(topic, client)
	if err != nil {
		return nil, err
	}
	reading, done := context.WithCancel(ctx)
	defer done()
	r := &reader{done: done}
	for reading.Err() == nil {
		if err := group.Consume(reading, []string{topic}, r); err != nil {
			return r.found, err
		}
	}
	if ctx.Err() != nil {
		return r.found, ctx.Err()
	}
	return r.found, group.Close()
}

func through(ctx context.Context, w ways.Way) ([]string, error) {
	topic := "sarama-" + w.Name
	config, err := configuration(w)
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(strings.Split(w.Servers, ","), config)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, err
	}
	if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		return nil, err
	}
	if err := produce(client, topic); err != nil {
		return nil, err
	}
	if err := transact(w, topic); err != nil {
		return nil, err
	}
	return consume(ctx, client, topic)
}

func main() {
	ways.Try(through)
}
