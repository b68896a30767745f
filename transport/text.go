package transport

import (
	"math"
	"strings"
	"unicode/utf8"
)

// ValidText is a string of the protocol as Apache Kafka reads it, which is valid UTF-8: each byte that can't be read stands for
// U+FFFD. Clients in C send what they were given, names in Latin-1 among them, and what we keep and compare has to be text.
func ValidText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// clientIDText is ValidText of a client id, but no longer than a string of the protocol may be: it is named in answers.
func clientIDText(s string) string {
	if valid := ValidText(s); len(valid) <= math.MaxInt16 {
		return valid
	}
	return strings.ToValidUTF8(s, "?")
}
