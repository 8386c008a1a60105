package reports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"mlsd/internal/errs"
)

// Content is what a report reveals, as JSON. All of it comes from the reporter. Clients can add
// fields, and spaces at the end that hide the length.
type Content struct {
	Text     string    `json:"text"`
	Messages []Message `json:"messages"`
	// Head is a signed head of the convo's log. The Proof of a message shows that the message's
	// entry is in that log (docs/TRANSPARENCY.md). Both are opaque here.
	Head string `json:"head,omitempty"`
}

// Message is a message that the reporter reveals.
type Message struct {
	Seq       int64  `json:"seq"`
	Sender    string `json:"sender"`
	Plaintext string `json:"plaintext"`
	Proof     string `json:"proof,omitempty"`
}

// ReadContent parses the content of an opened report. It returns an error if the content does not
// have this form.
func ReadContent(opened []byte) (c Content, err error) {
	err = json.Unmarshal(opened, &c)
	return c, errs.Wrap(err, "the report is not of the form that docs/clients/REPORTS.md states")
}

// maxNesting is how many levels of arrays and objects Printable accepts. Each line is indented by
// its level, so a document with many levels would fill the memory.
const maxNesting = 20

// Printable writes a JSON document for a terminal. It indents the document. It escapes every
// character that could move the cursor, change colours, hide text or turn its direction. It refuses
// a document that is nested too deeply.
func Printable(document []byte) (string, error) {
	if nesting(document) > maxNesting {
		return "", fmt.Errorf("print a report: it is nested more than %d levels deep", maxNesting)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.TrimSpace(document), "", "  "); err != nil {
		return "", fmt.Errorf("print a report: %w", err)
	}
	var out strings.Builder
	for _, r := range indented.String() {
		switch {
		case r == '\n', unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, first, second)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String(), nil
}

// nesting returns the depth of a JSON document.
func nesting(document []byte) (deepest int) {
	depth, text := 0, false
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case text && c == '\\':
			i++ // the escaped character does not end the text
		case c == '"':
			text = !text
		case !text && (c == '{' || c == '['):
			depth++
			deepest = max(deepest, depth)
		case !text && (c == '}' || c == ']'):
			depth--
		}
	}
	return deepest
}
