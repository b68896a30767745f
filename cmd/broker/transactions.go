package broker

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/transport/kafka"
)

// openTransactions starts the transaction coordinator. It coordinates once the metadata shows this broker's registration, in a
// cluster whose feature level has transactions, and answers while the lease holds.
func (b *Broker) openTransactions(context.Context) error {
	b.producerIDs = kafka.NewProducerIDs(b.store.AllocateProducerIDs)
	settings := cachedSettings[txn.Settings]{effective: b.effective, read: settingsOfTransactions}
	coordinator, err := txn.New(txn.Config{
		Broker: b.nodeID, Incarnation: b.incarnation, Store: b.store, ProducerIDs: b.producerIDs.Next, Leased: b.replicas.Leased, Settings: settings.get,
		Logger: b.logger.With("part", "txn"),
	})
	if err != nil {
		return fmt.Errorf("open the transaction coordinator: %w", err)
	}
	b.transactions = coordinator
	b.registry.MustRegister(coordinator.Collector(), transactionMetrics{b})
	b.transacting.Go(func() {
		if err := coordinator.Run(context.Background()); err != nil {
			b.fail("the transaction coordinator", err)
		}
	})
	var watching context.Context
	watching, b.stopWatching = context.WithCancel(context.Background())
	watch := transactionWatch{b: b, logger: b.logger.With("part", "txn")}
	b.transacting.Go(func() { watch.run(watching) })
	return nil
}

// closeTransactions ends the coordinator; what still waits is answered.
func (b *Broker) closeTransactions(context.Context) error {
	b.stopWatching()
	err := b.transactions.Close()
	b.transacting.Wait()
	return err
}

func settingsOfTransactions(values settingValues) txn.Settings {
	s := txn.DefaultSettings()
	s.MaxTimeout = values.millis("transaction.max.timeout.ms")
	s.IDExpiration = values.millis("transactional.id.expiration.ms")
	s.ExpirationInterval = values.millis("transaction.remove.expired.transaction.cleanup.interval.ms")
	s.AbortInterval = values.millis("transaction.abort.timed.out.transaction.cleanup.interval.ms")
	return s
}
