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
	// idempotencyKeyMax is the longest key, in characters. A character is one byte here.
	idempotencyKeyMax = 128
)

// KeyRule is the rule that [ValidIdempotencyKey] checks, as messages state it.
const KeyRule = "must be 1 to 128 printable ASCII characters, and neither begin nor end with a space"

// ValidIdempotencyKey reports whether key keeps [KeyRule]. A header loses leading and trailing
// spaces in transit, so such a key would differ from the same key in the field. A lexicon cannot
// express the rule, so the decoders apply it to every field and parameter named idempotencyKey.
func ValidIdempotencyKey(key string) bool {
	return len(key) > 0 && len(key) <= idempotencyKeyMax && key == strings.Trim(key, " ") && unprintable(key) < 0
}

// unprintable returns the index of the first character that is not printable ASCII, or -1.
func unprintable(key string) int {
	return strings.IndexFunc(key, func(r rune) bool { return r < 0x20 || r > 0x7e })
}

// A fault is a broken rule whose field is not known yet. The zero fault means that no rule is
// broken.
type fault struct {
	rule Rule
	text string
}

func (f fault) at(field string) *Violation { return violated(field, f.rule, "%s", f.text) }

// more stands for a length that was not counted to its end.
const more = "more"

// maximum returns the fault of a value that is too long. unit is singular.
func maximum(max int, unit, got string) fault {
	return fault{RuleMaxLength, "must have at most " + counted(max, unit) + ", got " + got}
}

func checkLength(n, min, max int, unit string) fault {
	switch {
	case n > max:
		return maximum(max, unit, strconv.Itoa(n))
	case n < min:
		return fault{RuleMinLength, "must have at least " + counted(min, unit) + ", got " + strconv.Itoa(n)}
	}
	return fault{}
}

// counted returns the text of a number with its unit. unit is singular.
func counted(n int, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return strconv.Itoa(n) + " " + unit
}

// notText returns the fault of a text of the wrong form. The message does not repeat the text,
// because a client can send anything in the wrong field.
func notText(rule Rule, want string, n int) fault {
	return fault{rule, want + ", got a text of " + counted(n, "byte")}
}

// checkString applies the rules of every string: the lexicon's limits, which
// count UTF-8 bytes, and no U+0000.
func checkString(s string, min, max int) fault {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return fault{RuleFormat, "must not hold U+0000, got it at byte " + strconv.Itoa(i)}
	}
	return checkLength(len(s), min, max, "byte")
}

func checkEnum(s string, allowed []string) fault {
	for _, a := range allowed {
		if s == a {
			return fault{}
		}
	}
	return notText(RuleEnum, "must be one of "+strings.Join(allowed, ", "), len(s))
}

func checkIdempotencyKey(s string) fault {
	if ValidIdempotencyKey(s) {
		return fault{}
	}
	got := "such a space"
	if i := unprintable(s); i >= 0 {
		got = "another character at byte " + strconv.Itoa(i)
	}
	return fault{RuleFormat, KeyRule + ", got " + got}
}

// Malformed returns the violation of a field whose text has the wrong form, by a rule that no
// lexicon expresses.
func Malformed(field, want, text string) *Violation {
	return notText(RuleFormat, want, len(text)).at(field)
}

func parseDID(s string) (syntax.DID, fault) {
	did, err := syntax.ParseDID(s)
	if err != nil {
		return "", notText(RuleFormat, "must be a DID, did:plc:… or did:web:…, and no handle", len(s))
	}
	return did, fault{}
}

func parseURI(s string) (string, fault) {
	if _, err := syntax.ParseURI(s); err != nil {
		return "", notText(RuleFormat, "must be a URI, with a scheme such as https: or at:", len(s))
	}
	return s, fault{}
}

func parseDatetime(s string) (Datetime, fault) {
	d, err := ParseDatetime(s)
	if err != nil {
		return Datetime{}, notText(RuleFormat, err.Error(), len(s))
	}
	return d, fault{}
}

// parseInteger reads plain decimal digits. It refuses 1.0, 1e3, -0 and +1, so
// that a value has one spelling.
func parseInteger(s string, min, max int64) (int64, fault) {
	if !isInteger(s) {
		got := "a text of " + counted(len(s), "byte")
		if strings.Trim(s, "+-.0123456789Ee") == "" { // a number, but another spelling
			got = cut(s)
		}
		return 0, fault{RuleType, "must be an integer in plain digits, got " + got}
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
		return 0, fault{RuleMax, "must be at most " + strconv.FormatInt(max, 10) + ", got " + cut(s)}
	case n < min:
		return 0, fault{RuleMin, "must be at least " + strconv.FormatInt(min, 10) + ", got " + cut(s)}
	}
	return n, fault{}
}

// cut returns the spelling of a number. A long spelling is cut.
func cut(number string) string {
	const longest = 12 // a longer one may not be a number
	switch {
	case number == "":
		return "nothing"
	case len(number) > longest:
		return number[:longest] + "…"
	}
	return number
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
