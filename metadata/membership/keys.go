package membership

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// ErrKey is matched by the errors of ParseKeys.
var ErrKey = errors.New("bad gossip key")

// ParseKeys reads gossip keys: base64 of 16, 24 or 32 bytes (AES-128, -192, -256), separated by commas. The first
// encrypts, every one decrypts. To rotate without a gap, restart the brokers one by one with "old,new", then with
// "new,old", then with "new". "" is no key.
func ParseKeys(text string) ([][]byte, error) {
	var keys [][]byte
	for i, item := range strings.Split(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(item)
		if err != nil {
			// The text is a secret: only its place is named.
			return nil, fmt.Errorf("%w: number %d is not base64", ErrKey, i+1)
		}
		switch len(key) {
		case 16, 24, 32:
		default:
			return nil, fmt.Errorf("%w: number %d has %d bytes, a key has 16, 24 or 32", ErrKey, i+1, len(key))
		}
		keys = append(keys, key)
	}
	return keys, nil
}
