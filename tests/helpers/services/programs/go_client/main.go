// Command go_client is a small program on the Go client, for the tests of foreign clients: one task, one JSON line.
//
//	go_client '{"task": "roundtrip", "url": "pulsar://...", "topic": "...", "tokenFile": "...", "count": 10}'
//
// Tasks: "roundtrip" sends count messages delayed by delayMs and receives them; "produce" and "subscribe" only try to;
// "hold" sends a message every 50 ms for holdMs through one producer; "refused" sends count messages, one delayed by
// delayMs and count more without waiting for receipts, and then count one after the other; sent is how many have
// receipts; "steady" sends numbers with five keys for holdMs, one after the other and without giving up, and receives them
// by Key_Shared until all are there: received counts each once, and early those behind a later one of their key. The token is read anew whenever it is asked for.
// JavaClient.java is the same program on the Java client.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

type task struct {
	Task           string
	URL            string
	Topic          string
	TokenFile      string
	TrustCertsFile string
	CertFile       string
	KeyFile        string
	Count          int
	DelayMs        int64
	HoldMs         int64
}

const keys = 5

type outcome struct {
	Error    string `json:"error"`
	Refused  string `json:"refused,omitempty"`
	Sent     int    `json:"sent"`
	Received int    `json:"received"`
	Early    int    `json:"early"`
}

func main() {
	var asked task
	if err := json.Unmarshal([]byte(os.Args[1]), &asked); err != nil {
		panic(err)
	}
	found := outcome{}
	if err := run(asked, &found); err != nil {
		found.Error = err.Error()
	}
	line, _ := json.Marshal(found)
	fmt.Println(string(line))
}

func run(asked task, found *outcome) error {
	client, err := connect(asked)
	if err != nil {
		return err
	}
	defer client.Close()
	if asked.Task == "subscribe" {
		_, err := subscribe(client, asked)
		return err
	}
	if asked.Task == "roundtrip" {
		return roundtrip(client, asked, found)
	}
	if asked.Task == "steady" {
		return steady(client, asked, found)
	}
	if asked.Task == "refused" {
		return refused(client, asked, found)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: asked.Topic, SendTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer producer.Close()
	if asked.Task == "produce" {
		return nil
	}
	end := time.Now().Add(time.Duration(asked.HoldMs) * time.Millisecond)
	for time.Now().Before(end) {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")}); err != nil {
			return err
		}
		found.Sent++
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func connect(asked task) (pulsar.Client, error) {
	options := pulsar.ClientOptions{
		URL:                   asked.URL,
		OperationTimeout:      10 * time.Second,
		ConnectionTimeout:     5 * time.Second,
		TLSTrustCertsFilePath: asked.TrustCertsFile,
		TLSValidateHostname:   true,
		Logger:                log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(os.Stderr, nil))),
	}
	if asked.TokenFile != "" {
		options.Authentication = pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
			token, err := os.ReadFile(asked.TokenFile)
			return strings.TrimSpace(string(token)), err
		})
	}
	if asked.CertFile != "" {
		options.Authentication = pulsar.NewAuthenticationTLS(asked.CertFile, asked.KeyFile)
	}
	return pulsar.NewClient(options)
}

func subscribe(client pulsar.Client, asked task) (pulsar.Consumer, error) {
	return client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       asked.Topic,
		SubscriptionName:            "sub",
		Type:                        pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
}

// refused tells what the client says of a message that the service does not take, and goes on with the same producer.
func refused(client pulsar.Client, asked task, found *outcome) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:           asked.Topic,
		SendTimeout:     10 * time.Second,
		DisableBatching: true,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	type answer struct {
		isLate bool
		err    error
	}
	answers := make(chan answer, 2*asked.Count+1)
	for i := 0; i <= 2*asked.Count; i++ {
		message := pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i))}
		isLate := i == asked.Count
		if isLate {
			message.DeliverAfter = time.Duration(asked.DelayMs) * time.Millisecond
		}
		producer.SendAsync(context.Background(), &message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { answers <- answer{isLate, err} })
	}
	for i := 0; i <= 2*asked.Count; i++ {
		given := <-answers
		if given.err == nil {
			found.Sent++
		} else if given.isLate {
			found.Refused = given.err.Error()
		}
	}
	for i := 0; i < asked.Count; i++ {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")}); err != nil {
			return err
		}
		found.Sent++
	}
	return nil
}

func roundtrip(client pulsar.Client, asked task, found *outcome) error {
	consumer, err := subscribe(client, asked)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: asked.Topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	due := time.Now().Add(time.Duration(asked.DelayMs) * time.Millisecond)
	for i := 0; i < asked.Count; i++ {
		message := pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(i)), Key: fmt.Sprint(i), DeliverAt: due}
		if _, err := producer.Send(context.Background(), &message); err != nil {
			return err
		}
		found.Sent++
	}
	patience, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for found.Received < asked.Count {
		message, err := consumer.Receive(patience)
		if err != nil {
			return err
		}
		// The service keeps whole milliseconds.
		if time.Now().UnixMilli() < due.UnixMilli() {
			found.Early++
		}
		found.Received++
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	return nil
}

func steady(client pulsar.Client, asked task, found *outcome) error {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: asked.Topic, SubscriptionName: "steady", Type: pulsar.KeyShared,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: asked.Topic, SendTimeout: -1, DisableBatching: true,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	sending := make(chan error, 1)
	go func() {
		end := time.Now().Add(time.Duration(asked.HoldMs) * time.Millisecond)
		for time.Now().Before(end) {
			message := pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(found.Sent)), Key: fmt.Sprint(found.Sent % keys)}
			if _, err := producer.Send(context.Background(), &message); err != nil {
				sending <- err
				return
			}
			found.Sent++
		}
		sending <- nil
	}()
	seen, last := map[int]bool{}, [keys]int{}
	isSent := false
	for !isSent || found.Received < found.Sent {
		patience, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		message, err := consumer.Receive(patience)
		cancel()
		if err == nil {
			var number int
			fmt.Sscan(string(message.Payload()), &number)
			if !seen[number] {
				seen[number] = true
				found.Received++
				if number < last[number%keys] {
					found.Early++
				}
				last[number%keys] = max(number, last[number%keys])
			}
			if err := consumer.Ack(message); err != nil {
				return err
			}
		}
		select {
		case err := <-sending:
			if err != nil {
				return err
			}
			isSent = true
		default:
		}
	}
	return nil
}
