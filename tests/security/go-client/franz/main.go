// The Go client franz-go through each lock: a topic, two transactions of which one is aborted, and a group that reads.
package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"semel.example/goclient/ways"
)

func options(w ways.Way) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(w.Servers), kgo.RequestRetries(2)}
	config, err := w.TLS()
	if err != nil {
		return nil, err
	}
	if config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch w.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: w.User, Pass: w.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: w.User, Pass: w.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: w.User, Pass: w.Password}.AsSha512Mechanism()))
	}
	return options, nil
}

func through(ctx context.Context, w ways.Way) ([]string, error) {
	options, err := options(w)
	if err != nil {
		return nil, err
	}
	topic := "franz-" + w.Name
	producer, err := kgo.NewClient(append(options, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil {
		return nil, err
	}
	if _, err := kadm.NewClient(producer).CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return nil, err
	}
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := producer.BeginTransaction(); err != nil {
			return nil, err
		}
		for number := 0; number < 10; number++ {
			text := "aborted"
			if commit == kgo.TryCommit {
				text = fmt.Sprint(number)
			}
			producer.Produce(ctx, kgo.StringRecord(text), nil)
		}
		if err := producer.Flush(ctx); err != nil {
			return nil, err
		}
		if err := producer.EndTransaction(ctx, commit); err != nil {
			return nil, err
		}
	}
	consumer, err := kgo.NewClient(append(options, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var found []string
	for len(found) < 10 {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return found, err
		}
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return found, consumer.CommitUncommittedOffsets(ctx)
}

func main() {
	ways.Try(through)
}
