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

// Content is what a report reveals, as JSON. Every word of it is the reporter's. Clients can add
// fields, and spaces at the end that hide the length.
type Content struct {
	Text     string    `json:"text"`
	Messages []Message `json:"messages"`
	// Head is a signed head of the log of the convo, and the Proof of a message shows that its entry
	// is in that log (docs/TRANSPARENCY.md). Both are opaque here.
	Head string `json:"head,omitempty"`
}

// Message is a message that the reporter reveals.
type Message struct {
	Seq       int64  `json:"seq"`
	Sender    string `json:"sender"`
	Plaintext string `json:"plaintext"`
	Proof     string `json:"proof,omitempty"`
}

// ReadContent reads a content that was opened. Error: it is not of this form.
func ReadContent(opened []byte) (c Content, err error) {
	err = json.Unmarshal(opened, &c)
	return c, errs.Wrap(err, "the report is not of the form that docs/clients/REPORTS.md states")
}

// maxNesting is how many levels of arrays and objects Printable takes. A line is indented by its
// level, so a document of many levels would fill the memory.
const maxNesting = 20

// Printable writes a JSON document for a terminal: indented, and with every character escaped that
// could move the cursor, change colours, hide text or turn its direction. It refuses one that is
// nested too deeply.
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

// nesting is the depth of a JSON document.
func nesting(document []byte) (deepest int) {
	depth, text := 0, false
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case text && c == '\\':
			i++ // what it escapes ends no text
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
