package lexcodec

import (
	"fmt"
	"strconv"
)

// Rule is the kind of rule that an input broke.
type Rule string

// The rules. Each is one reason for a refusal; Violation.Message spells it out.
const (
	RuleSyntax    Rule = "syntax"     // not JSON, not UTF-8, empty, or followed by more text
	RuleRequired  Rule = "required"   // a required field or parameter is missing
	RuleNull      Rule = "null"       // null for a field that is not nullable
	RuleType      Rule = "type"       // another JSON type than the lexicon's
	RuleMinLength Rule = "min-length" // a string, bytes or array too short
	RuleMaxLength Rule = "max-length" // a string, bytes or array too long
	RuleMin       Rule = "min"        // an integer too small
	RuleMax       Rule = "max"        // an integer too large
	RuleFormat    Rule = "format"     // not a DID, datetime, URI, base64 or idempotency key
	RuleEnum      Rule = "enum"       // not in a closed list of values
	RuleDuplicate Rule = "duplicate"  // a name that occurs twice in an object, or a repeated single parameter
	RuleTooMany   Rule = "too-many"   // more unknown fields than maxUnknown
)

// A Violation says which rule an input broke and where. It is answered with InvalidRequest, or with
// the method's own error for the field.
type Violation struct {
	// Field is the path from the body or the parameters, such as "initialMembers[3]" or
	// "metadata.name". It is empty for the body as a whole.
	Field string
	// Rule is the rule that was broken.
	Rule Rule
	// Message names the field and the rule, and the kind, the size or the number that was sent. It
	// repeats no text of the client's.
	Message string
}

// Error returns the message. It is safe to send to a client.
func (v *Violation) Error() string { return v.Message }

// violated builds a Violation whose message starts with the field.
func violated(field string, rule Rule, format string, args ...any) *Violation {
	subject := field
	if subject == "" {
		subject = "the body"
	}
	return &Violation{Field: field, Rule: rule, Message: subject + " " + fmt.Sprintf(format, args...)}
}

// segment is one step of a path: a name, or an index if the name is empty.
type segment struct {
	name  string
	index int
}

// pathString renders a path as Violation.Field documents it.
func pathString(path []segment) string {
	var b []byte
	for _, s := range path {
		if s.name == "" {
			b = append(b, '[')
			b = strconv.AppendInt(b, int64(s.index), 10)
			b = append(b, ']')
			continue
		}
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, s.name...)
	}
	return string(b)
}
