package metadata

// CoordinatorKind is what is coordinated.
type CoordinatorKind uint8

// Kinds of coordinators, numbered as in FindCoordinator.
const (
	GroupCoordinator       CoordinatorKind = 0 // the key is a group's name
	TransactionCoordinator CoordinatorKind = 1 // the key is a transactional id
)

// Coordinator returns the broker that coordinates a group or a transactional id in this Image, and the coordinator epoch.
// It is a function of the committed state alone, so that whoever has applied the same commands says the same: rendezvous
// hashing over the brokers that are unfenced and neither leave, nor drain, nor are being removed; over all that are
// unfenced if there is no other; NoBroker if there is none at all. When a broker comes or goes only the keys move that it
// has or had.
//
// The epoch grows whenever that set of brokers changes, or one of them registers anew, and is never reused (I15). It does
// not say that the key has moved.
//
// A broker that finds itself named here has applied every commit that an earlier coordinator acknowledged, for those come
// before the change that made it the coordinator (G4). Being named does not prove that nobody else is by now: that proof
// is in Apply, which refuses what a broker proposes that is no longer the coordinator (G5).
func (im *Image) Coordinator(kind CoordinatorKind, key string) (BrokerID, int32) {
	return rendezvous(im.st.coordinators, kind, key), im.st.coordinatorEpoch
}

// rendezvous returns the broker with the highest score for the key; the lower id if two have the same.
func rendezvous(brokers []BrokerID, kind CoordinatorKind, key string) BrokerID {
	best, highest := NoBroker, uint64(0)
	h := hashKey(kind, key)
	for _, id := range brokers {
		if score := mix(h ^ mix(uint64(uint32(id))+1)); best == NoBroker || score > highest {
			best, highest = id, score
		}
	}
	return best
}

// hashKey is FNV-1a of the key, after the kind. It is part of what all versions must agree on, like the rest of rendezvous.
func hashKey(kind CoordinatorKind, key string) uint64 {
	const prime = 1099511628211
	h := (uint64(14695981039346656037) ^ uint64(kind)) * prime
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * prime
	}
	return h
}

// mix spreads every bit of x over the result (the finalizer of splitmix64): FNV alone leaves the high bits of short keys too
// much alike.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
