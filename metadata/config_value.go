package metadata

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxLong is Kafka's "no limit".
const maxLong = "9223372036854775807"

// quoteShort quotes text of a user for a message, cut so that it stays one readable line.
func quoteShort(s string) string {
	const limit = 80
	if len(s) > limit {
		n := limit
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "…"
	}
	return strconv.Quote(s)
}

// Canonical checks value and returns it as Kafka writes it: plain numbers in the key's unit ("7d" for
// retention.ms becomes "604800000"), lower case booleans, list items without spaces. Errors are *Error.
func (k *ConfigKey) Canonical(value string) (string, error) {
	if k.Class == ConfigRefused && k.check == nil {
		return "", &Error{Kind: ErrInvalidConfig, What: fmt.Sprintf("%s config %s is refused", k.Scope, k.Name), Why: k.Reason, Fix: "leave it out"}
	}
	canonical, err := k.parse(strings.TrimSpace(value))
	if err == nil && k.check != nil {
		err = k.check(canonical)
	}
	if err == nil {
		return canonical, nil
	}
	var refused *refusedValue
	if errors.As(err, &refused) {
		return "", &Error{Kind: ErrInvalidConfig, What: fmt.Sprintf("%s config %s=%s is refused", k.Scope, k.Name, k.show(value)), Why: refused.why, Fix: refused.fix}
	}
	e := &Error{Kind: ErrInvalidConfig, What: fmt.Sprintf("%s config %s=%s is not valid", k.Scope, k.Name, k.show(value)), Why: err.Error(), Fix: k.example()}
	return "", e
}

func (k *ConfigKey) show(value string) string {
	if k.Sensitive || k.Type == ConfigPassword {
		return "[hidden]"
	}
	return quoteShort(value)
}

// example is the third line of an error about a value.
func (k *ConfigKey) example() string {
	switch {
	case k.NoDefault || k.Default == "":
		if k.validValues != "" {
			return "set " + k.Name + " to " + k.validValues
		}
		return "leave it out, or give " + k.typeWords()
	case k.Type == ConfigBoolean:
		return k.Name + "=true or " + k.Name + "=false"
	case k.Unit == UnitMilliseconds && k.Default != maxLong:
		return fmt.Sprintf("%s=%s (the default), or with a unit, as %s=7d", k.Name, k.Default, k.Name)
	case k.Unit == UnitBytes && k.Default != maxLong:
		return fmt.Sprintf("%s=%s (the default), or with a unit, as %s=512MiB", k.Name, k.Default, k.Name)
	}
	return k.Name + "=" + k.Default + " (the default)"
}

func (k *ConfigKey) typeWords() string {
	switch k.Type {
	case ConfigBoolean:
		return "true or false"
	case ConfigInt, ConfigShort, ConfigLong:
		switch k.Unit {
		case UnitBytes:
			return "a whole number of bytes, or a size such as 512MiB"
		case UnitMilliseconds:
			return "a whole number of milliseconds, or a duration such as 7d"
		case UnitSeconds:
			return "a whole number of seconds, or a duration such as 5m"
		case UnitMinutes:
			return "a whole number of minutes, or a duration such as 7d"
		case UnitHours:
			return "a whole number of hours, or a duration such as 7d"
		}
		return "a whole number"
	case ConfigDouble:
		return "a number"
	}
	return "a " + k.Type.String()
}

// parse checks the type and returns the canonical spelling.
func (k *ConfigKey) parse(value string) (string, error) {
	if value == "" && k.NoDefault {
		return "", nil // "key=" in a properties file: as if it were not there
	}
	switch k.Type {
	case ConfigBoolean:
		switch strings.ToLower(value) {
		case "true", "false":
			return strings.ToLower(value), nil
		}
		return "", errors.New("it must be true or false")
	case ConfigInt, ConfigShort, ConfigLong:
		n, err := k.parseNumber(value)
		if err != nil {
			return "", err
		}
		return strconv.FormatInt(n, 10), nil
	case ConfigDouble:
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(f) {
			return "", errors.New("it must be a number")
		}
		return value, nil
	case ConfigList:
		return strings.Join(SplitConfigList(value), ","), nil
	}
	return value, nil
}

// typeRange returns the bounds of the wire type.
func (k *ConfigKey) typeRange() (lo, hi int64) {
	switch k.Type {
	case ConfigShort:
		return math.MinInt16, math.MaxInt16
	case ConfigInt:
		return math.MinInt32, math.MaxInt32
	}
	return math.MinInt64, math.MaxInt64
}

func (k *ConfigKey) parseNumber(value string) (int64, error) {
	lo, hi := k.typeRange()
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("it must be between %d and %d", lo, hi)
		}
		n, err = parseWithUnit(value, k.Unit)
		if err != nil {
			if errors.Is(err, errFraction) || errors.Is(err, errOverflow) {
				return 0, fmt.Errorf("%w: it must be %s", err, k.typeWords())
			}
			return 0, errors.New("it must be " + k.typeWords())
		}
	}
	if n < lo || n > hi {
		return 0, fmt.Errorf("it must be between %d and %d", lo, hi)
	}
	return n, nil
}

var (
	errNoUnit   = errors.New("no known unit")
	errFraction = errors.New("it is not a whole number of the key's unit")
	errOverflow = errors.New("it is too large")
)

// unitWords maps a suffix, in lower case except for sizes, to its factor in bytes or in milliseconds.
var sizeWords = map[string]int64{
	"B": 1, "kB": 1000, "KB": 1000, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

var durationWords = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}

// parseWithUnit reads "7d", "1h30m", "512MiB", "1.5GiB" as a whole number of the key's unit.
func parseWithUnit(value string, unit ConfigUnit) (int64, error) {
	words, divisor := durationWords, int64(1)
	switch unit {
	case UnitBytes:
		words = sizeWords
	case UnitMilliseconds:
	case UnitSeconds:
		divisor = 1000
	case UnitMinutes:
		divisor = 60_000
	case UnitHours:
		divisor = 3_600_000
	default:
		return 0, errNoUnit
	}
	sign, rest := 1.0, value
	if r, ok := strings.CutPrefix(rest, "-"); ok {
		sign, rest = -1, r
	}
	if rest == "" {
		return 0, errNoUnit
	}
	total := 0.0
	for rest != "" {
		i := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i <= 0 {
			return 0, errNoUnit
		}
		f, err := strconv.ParseFloat(rest[:i], 64)
		if err != nil {
			return 0, errNoUnit
		}
		rest = strings.TrimLeft(rest[i:], " ")
		j := strings.IndexFunc(rest, func(r rune) bool { return r >= '0' && r <= '9' })
		if j < 0 {
			j = len(rest)
		}
		factor, ok := words[strings.TrimSpace(rest[:j])]
		if !ok {
			return 0, errNoUnit
		}
		total += f * float64(factor)
		rest = rest[j:]
	}
	total = sign * total / float64(divisor)
	if total != math.Trunc(total) {
		return 0, errFraction
	}
	if math.Abs(total) >= 1<<63 {
		return 0, errOverflow
	}
	return int64(total), nil
}

// SplitConfigList splits a list value at commas, without the spaces around items and without empty items.
func SplitConfigList(value string) []string {
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// AppendConfigList adds the items of value to the list current, each once (incremental AlterConfigs, KIP-339).
func AppendConfigList(current, value string) string {
	items := SplitConfigList(current)
	for _, item := range SplitConfigList(value) {
		if !slices.Contains(items, item) {
			items = append(items, item)
		}
	}
	return strings.Join(items, ",")
}

// SubtractConfigList removes the items of value from the list current.
func SubtractConfigList(current, value string) string {
	gone := SplitConfigList(value)
	return strings.Join(slices.DeleteFunc(SplitConfigList(current), func(s string) bool { return slices.Contains(gone, s) }), ",")
}

// refusedValue is a check's way to say that a value is well formed, but may not be had here.
type refusedValue struct{ why, fix string }

func (r *refusedValue) Error() string { return r.why }

// The options of a table row. Each returns the row, so that a row reads as one sentence.

func (k *ConfigKey) atLeast(n int64) *ConfigKey {
	k.validValues = fmt.Sprintf("at least %d", n)
	return k.and(func(v string) error {
		if i, err := strconv.ParseInt(v, 10, 64); err == nil && i < n {
			return fmt.Errorf("it must be at least %d", n)
		}
		return nil
	})
}

func (k *ConfigKey) between(lo, hi float64) *ConfigKey {
	k.validValues = fmt.Sprintf("between %g and %g", lo, hi)
	return k.and(func(v string) error {
		if f, err := strconv.ParseFloat(v, 64); err == nil && (f < lo || f > hi) {
			return fmt.Errorf("it must be between %g and %g", lo, hi)
		}
		return nil
	})
}

func (k *ConfigKey) oneOf(values ...string) *ConfigKey {
	k.validValues = "one of " + strings.Join(values, ", ")
	return k.and(func(v string) error {
		if !slices.Contains(values, v) {
			return errors.New("it must be one of " + strings.Join(values, ", "))
		}
		return nil
	})
}

// listOf allows lists of these values; least is how many it must have.
func (k *ConfigKey) listOf(least int, values ...string) *ConfigKey {
	k.validValues = "a list of " + strings.Join(values, ", ")
	return k.and(func(v string) error {
		items := SplitConfigList(v)
		for i, item := range items {
			if !slices.Contains(values, item) {
				return fmt.Errorf("%s is not one of %s", quoteShort(item), strings.Join(values, ", "))
			}
			if slices.Contains(items[:i], item) {
				return fmt.Errorf("%s is in the list twice", item)
			}
		}
		if len(items) < least {
			return fmt.Errorf("it must name at least %d of %s", least, strings.Join(values, ", "))
		}
		return nil
	})
}

// that adds a check in words of its own.
func (k *ConfigKey) that(valid string, check func(string) error) *ConfigKey {
	k.validValues = valid
	return k.and(check)
}

func (k *ConfigKey) and(check func(string) error) *ConfigKey {
	if before := k.check; before != nil {
		k.check = func(v string) error {
			if err := before(v); err != nil {
				return err
			}
			return check(v)
		}
		return k
	}
	k.check = check
	return k
}

func (k *ConfigKey) inert(reason string) *ConfigKey {
	k.Class, k.Reason = ConfigInert, reason
	return k
}

func (k *ConfigKey) refused(reason string) *ConfigKey {
	k.Class, k.Reason, k.NoDefault = ConfigRefused, reason, true
	return k
}

// refusedWhenSet refuses the key with any value but none.
func (k *ConfigKey) refusedWhenSet(why, fix string) *ConfigKey {
	k.refused(why)
	return k.refuse(notEmpty, why, fix)
}

// refuse makes one value of an otherwise harmless key an error.
func (k *ConfigKey) refuse(bad func(string) bool, why, fix string) *ConfigKey {
	return k.and(func(v string) error {
		if bad(v) {
			return &refusedValue{why: why, fix: fix}
		}
		return nil
	})
}

func (k *ConfigKey) synonyms(names ...string) *ConfigKey {
	k.Synonyms = names
	return k
}

func (k *ConfigKey) dynamic() *ConfigKey {
	k.Dynamic = true
	return k
}

func (k *ConfigKey) sensitive() *ConfigKey {
	k.Sensitive = true
	return k
}

func (k *ConfigKey) hidden() *ConfigKey {
	k.Hidden = true
	return k
}

// unset says that the key has no default value; note, when not "", says what happens then.
func (k *ConfigKey) unset(note string) *ConfigKey {
	k.Default, k.NoDefault, k.DefaultNote = "", true, note
	return k
}

// dependsOn says that the default is computed; note says from what.
func (k *ConfigKey) dependsOn(note string) *ConfigKey {
	k.Default, k.DefaultNote = "", note
	return k
}

func boolKey(name string, def bool, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigBoolean, Default: strconv.FormatBool(def), Doc: doc}
}

func intKey(name string, def int64, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigInt, Default: strconv.FormatInt(def, 10), Doc: doc}
}

func shortKey(name string, def int64, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigShort, Default: strconv.FormatInt(def, 10), Doc: doc}
}

func longKey(name string, def int64, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigLong, Default: strconv.FormatInt(def, 10), Doc: doc}
}

func doubleKey(name, def, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigDouble, Default: def, Doc: doc}
}

func stringKey(name, def, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigString, Default: def, Doc: doc}
}

func listKey(name, def, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigList, Default: def, Doc: doc}
}

func classKey(name, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigClassVal, NoDefault: true, Doc: doc}
}

func passwordKey(name, doc string) *ConfigKey {
	return &ConfigKey{Name: name, Type: ConfigPassword, NoDefault: true, Sensitive: true, Doc: doc}
}

func (k *ConfigKey) bytes() *ConfigKey   { k.Unit = UnitBytes; return k }
func (k *ConfigKey) ms() *ConfigKey      { k.Unit = UnitMilliseconds; return k }
func (k *ConfigKey) seconds() *ConfigKey { k.Unit = UnitSeconds; return k }
func (k *ConfigKey) minutes() *ConfigKey { k.Unit = UnitMinutes; return k }
func (k *ConfigKey) hours() *ConfigKey   { k.Unit = UnitHours; return k }
