package transport

import "unicode/utf8"

// ValidText is a string of the protocol as Apache Kafka reads it, which is valid UTF-8: each byte that can't be read stands for
// U+FFFD. Clients in C send what they were given, names in Latin-1 among them, and what we keep and compare has to be text.
func ValidText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}
