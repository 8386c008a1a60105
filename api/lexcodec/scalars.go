package lexcodec

import (
	"strconv"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const (
	// NoLimit stands for an upper bound that the lexicon does not set.
	NoLimit = int(^uint(0) >> 1)
	// MaxInteger is the largest integer that every JSON implementation keeps
	// exact. -MaxInteger is the smallest.
	MaxInteger = 1<<53 - 1
	// idempotencyKeyMax is in characters, which are bytes here.
	idempotencyKeyMax = 128
)

// ValidIdempotencyKey reports whether key is 1 to 128 printable ASCII characters.
// The space counts as printable. A lexicon cannot express this rule; the decoders
// apply it to every field and parameter named idempotencyKey.
func ValidIdempotencyKey(key string) bool {
	if len(key) == 0 || len(key) > idempotencyKeyMax {
		return false
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return false
		}
	}
	return true
}

// A fault is a broken rule whose field is not known yet. The zero fault means
// that no rule is broken.
type fault struct {
	rule Rule
	text string
}

func (f fault) at(field string) *Violation { return violated(field, f.rule, "%s", f.text) }

func minimum(min int, unit string) fault {
	return fault{RuleMinLength, "must have at least " + strconv.Itoa(min) + " " + unit}
}

func maximum(max int, unit string) fault {
	return fault{RuleMaxLength, "must have at most " + strconv.Itoa(max) + " " + unit}
}

func checkLength(n, min, max int, unit string) fault {
	switch {
	case n > max:
		return maximum(max, unit)
	case n < min:
		return minimum(min, unit)
	}
	return fault{}
}

// checkString applies the rules of every string: the lexicon's limits, which
// count UTF-8 bytes, and no U+0000.
func checkString(s string, min, max int) fault {
	if strings.IndexByte(s, 0) >= 0 {
		return fault{RuleFormat, "must not hold U+0000"}
	}
	return checkLength(len(s), min, max, "bytes")
}

func checkEnum(s string, allowed []string) fault {
	for _, a := range allowed {
		if s == a {
			return fault{}
		}
	}
	return fault{RuleEnum, "must be one of " + strings.Join(allowed, ", ")}
}

func checkIdempotencyKey(s string) fault {
	if !ValidIdempotencyKey(s) {
		return fault{RuleFormat, "must be 1 to 128 printable ASCII characters"}
	}
	return fault{}
}

func parseDID(s string) (syntax.DID, fault) {
	did, err := syntax.ParseDID(s)
	if err != nil {
		return "", fault{RuleFormat, "must be a DID"}
	}
	return did, fault{}
}

func parseURI(s string) (string, fault) {
	if _, err := syntax.ParseURI(s); err != nil {
		return "", fault{RuleFormat, "must be a URI"}
	}
	return s, fault{}
}

func parseDatetime(s string) (Datetime, fault) {
	d, err := ParseDatetime(s)
	if err != nil {
		return Datetime{}, fault{RuleFormat, err.Error()}
	}
	return d, fault{}
}

// parseInteger reads plain decimal digits. It refuses 1.0, 1e3, -0 and +1, so
// that a value has one spelling.
func parseInteger(s string, min, max int64) (int64, fault) {
	if !isInteger(s) {
		return 0, fault{RuleType, "must be an integer in plain digits"}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil { // out of int64's range; ParseInt returns the nearer end
		n = MaxInteger + 1
		if s[0] == '-' {
			n = -n
		}
	}
	switch {
	case n > max:
		return 0, fault{RuleMax, "must be at most " + strconv.FormatInt(max, 10)}
	case n < min:
		return 0, fault{RuleMin, "must be at least " + strconv.FormatInt(min, 10)}
	}
	return n, fault{}
}

// isInteger matches 0 or an optional minus and digits without a leading zero.
func isInteger(s string) bool {
	if s == "0" {
		return true
	}
	s = strings.TrimPrefix(s, "-")
	if s == "" || s[0] == '0' {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
