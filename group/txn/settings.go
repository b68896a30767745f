package txn

import "time"

// Settings are the parts of the broker's config that may change live.
type Settings struct {
	MaxTimeout time.Duration // transaction.max.timeout.ms, inclusive
	// IDExpiration is transactional.id.expiration.ms: an id that nothing has happened to for so long is forgotten, unless its
	// transaction is open or being ended (P10).
	IDExpiration time.Duration
	// ExpirationInterval is transaction.remove.expired.transaction.cleanup.interval.ms: how often that is looked for.
	ExpirationInterval time.Duration
	// AbortInterval is transaction.abort.timed.out.transaction.cleanup.interval.ms. Time-outs are not looked for: each has its
	// moment. It bounds the pause before an abort is tried again that could not be made.
	AbortInterval time.Duration
	// MaxHold is how long a request waits for the markers of the transaction before, and whatever else is under way with its
	// id, until it is told ErrConcurrentTransactions.
	MaxHold time.Duration
}

// DefaultSettings are those of a broker that says nothing.
func DefaultSettings() Settings {
	return Settings{
		MaxTimeout: 15 * time.Minute, IDExpiration: 7 * 24 * time.Hour, ExpirationInterval: time.Hour, AbortInterval: 10 * time.Second,
		MaxHold: 500 * time.Millisecond,
	}
}
