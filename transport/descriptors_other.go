//go:build !unix

package transport

import "math"

// defaultMaxConnections sets no limit where descriptors have none.
func defaultMaxConnections() int { return math.MaxInt32 }
