package console

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable keeps the names that clients choose from drawing on a terminal, or from looking like a line of ours: what is not to be
// printed is shown as Go writes it (S6).
func Printable(s string) string {
	strange := func(r rune) bool { return !unicode.IsPrint(r) }
	if strings.IndexFunc(s, strange) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if strange(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// word is a name that somebody else chose as a word of a command that we tell people to type: it is one word of a shell, and
// nothing that a shell would do something about.
func word(s string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("._-:/@+=,%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(Printable(s), "'", `'\''`) + "'"
}
