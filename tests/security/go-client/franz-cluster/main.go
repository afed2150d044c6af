// franz-go on a cluster whose brokers come and go: a producer that counts on every acknowledgement, a copier in
// transactions with its group's offsets, and a reader of what is committed. It prints what the reader found.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions, replicas = 3, 3

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func client(servers []string, more ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(servers...)}, more...)...)
	if err != nil {
		fail("client", err)
	}
	return made
}

func produce(ctx context.Context, servers []string, topic string, count int, pause time.Duration) {
	producer := client(servers, kgo.DefaultProduceTopic(topic))
	defer producer.Close()
	for number := 0; number < count; number++ {
		record := &kgo.Record{Key: []byte(strconv.Itoa(number)), Value: []byte(strconv.Itoa(number))}
		producer.Produce(ctx, record, func(record *kgo.Record, err error) {
			if err != nil {
				fail("produce "+string(record.Value), err)
			}
		})
		time.Sleep(pause) // so that brokers come and go meanwhile
	}
	if err := producer.Flush(ctx); err != nil {
		fail("flush", err)
	}
}

// duplicate copies until it is told to stop. franz-go gives up a request to a coordinator whose port refuses
// connections, with Kafka as well: then nobody knows whether the transaction was committed, and the copier begins anew, as
// a process would that was started again.
func duplicate(ctx context.Context, servers []string, source, target string) {
	for ctx.Err() == nil {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(servers...), kgo.TransactionalID("franz-copier"), kgo.ConsumerGroup("franz-copiers"),
			kgo.ConsumeTopics(source), kgo.DefaultProduceTopic(target), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.SessionTimeout(10*time.Second),
		)
		if err != nil {
			fail("copier", err)
		}
		for ctx.Err() == nil {
			if err := step(ctx, session); err != nil {
				fmt.Fprintf(os.Stderr, "the copier begins anew: %v\n", err)
				break
			}
		}
		session.Close()
	}
}

func step(ctx context.Context, session *kgo.GroupTransactSession) error {
	fetches := session.PollFetches(ctx)
	if ctx.Err() != nil || fetches.NumRecords() == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	failed := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(record *kgo.Record) {
		session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, failed.Promise())
	})
	_, err := session.End(context.Background(), kgo.TransactionEndTry(failed.Err() == nil))
	return err
}

func read(ctx context.Context, servers []string, topic string, count int) []string {
	reader := client(servers, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer reader.Close()
	found := []string{}
	until := ctx
	for {
		fetches := reader.PollFetches(until)
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
		if until.Err() != nil {
			return found
		}
		if len(found) >= count && until == ctx {
			// Whatever is there twice comes soon.
			var done context.CancelFunc
			until, done = context.WithTimeout(ctx, 3*time.Second)
			defer done()
		}
	}
}

func main() {
	servers := strings.Split(os.Args[1], ",")
	count, _ := strconv.Atoi(os.Args[2])
	pause, _ := time.ParseDuration(os.Args[3])
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	admin := kadm.NewClient(client(servers))
	for _, topic := range []string{"franz-source", "franz-target"} {
		if _, err := admin.CreateTopic(ctx, partitions, replicas, nil, topic); err != nil {
			fail("create "+topic, err)
		}
	}
	copying, enough := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		duplicate(copying, servers, "franz-source", "franz-target")
		close(ended)
	}()
	produce(ctx, servers, "franz-source", count, pause)
	found := read(ctx, servers, "franz-target", count)
	enough()
	<-ended
	json.NewEncoder(os.Stdout).Encode(found)
}
